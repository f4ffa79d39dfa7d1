//! The equations of [`Einsum`]: from ONNX's notation to one letter a dimension.

use super::einsum::Einsum;
use crate::OpError;

/// The letters that name dimensions.
pub const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Whether no letter stands twice.
pub fn distinct(letters: &str) -> bool {
    letters.bytes().enumerate().all(|(i, l)| letters.bytes().skip(i + 1).all(|m| l != m))
}

/// Reads an equation, replacing an ellipsis by letters that it does not use.
pub fn parse(equation: &str, ranks: &[usize]) -> Result<Einsum, OpError> {
    let bad = |why: String| OpError::BadAttribute { name: "equation", why };
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&text[..], None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(bad(format!("{equation:?} has {} terms", terms.len())));
    }
    let named = |term: &str| term.replacen("...", "", 1);
    for term in terms.iter().copied().chain(right) {
        if !named(term).chars().all(|c| c.is_ascii_alphabetic()) {
            return Err(bad(format!("{term:?} is not made of letters")));
        }
    }
    // An ellipsis stands for as many dimensions as the letters leave over.
    let covered = |term: &str, rank: usize| {
        let left = rank.checked_sub(named(term).len());
        left.filter(|&n| n == 0 || term.contains("..."))
            .ok_or_else(|| bad(format!("{term:?} does not fit an input of rank {rank}")))
    };
    let hidden = terms
        .iter()
        .zip(ranks)
        .map(|(term, &rank)| covered(term, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let most = hidden.iter().copied().max().unwrap_or(0);
    let free: String = LETTERS.chars().filter(|&l| !text.contains(l)).take(most).collect();
    if free.len() < most {
        return Err(bad(format!("{equation:?} uses too many letters")));
    }
    let spelled = |term: &str, dims: usize| term.replacen("...", &free[most - dims..], 1);
    let inputs: Vec<String> =
        terms.iter().zip(&hidden).map(|(term, &dims)| spelled(term, dims)).collect();
    let output = if let Some(right) = right {
        spelled(right, most)
    } else {
        let mut once: Vec<char> =
            LETTERS.chars().filter(|&l| left.matches(l).count() == 1).collect();
        once.sort_unstable();
        free.chars().chain(once).collect()
    };
    if !distinct(&output) {
        return Err(bad(format!("the output {output:?} has a letter twice")));
    }
    if let Some(l) = output.chars().find(|&l| !inputs.iter().any(|t| t.contains(l))) {
        return Err(bad(format!("no input has the output's letter `{l}`")));
    }
    Ok(Einsum { inputs, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(equation: &str, ranks: &[usize]) -> Option<(Vec<String>, String)> {
        parse(equation, ranks).ok().map(|e| (e.inputs, e.output))
    }

    #[test]
    fn equations_are_spelled_out() {
        let is = |equation, ranks: &[usize], inputs: &[&str], output: &str| {
            let inputs = inputs.iter().map(ToString::to_string).collect();
            assert_eq!(parsed(equation, ranks), Some((inputs, output.to_string())), "{equation}");
        };
        is("ij, jk -> ik", &[2, 2], &["ij", "jk"], "ik");
        is("bij,bjk", &[3, 3], &["bij", "bjk"], "ik");
        is("...ii->...i", &[4], &["abii"], "abi");
        is("...a,a...->...", &[3, 2], &["bca", "ac"], "bc");
        is(",", &[0, 0], &["", ""], "");
    }

    #[test]
    fn bad_equations_are_errors() {
        for (equation, ranks) in [
            ("ij->ii", &[2][..]),
            ("ij->k", &[2]),
            ("ij", &[3]),
            ("ij,jk->ik", &[2]),
            ("i.j->i", &[2]),
            ("......->", &[2]),
            ("ijk", &[2]),
            ("é->", &[1]),
        ] {
            assert_eq!(parsed(equation, ranks), None, "{equation}");
        }
    }
}
