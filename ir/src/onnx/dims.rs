//! Symbolic dimensions: names such as `batch`, and expressions over them such as `past_seq + 1`.
//!
//! ```text
//! sum     = product (('+' | '-') product)*
//! product = unary (('*' | '//' | '%') unary)*
//! unary   = '-' unary | number | name | name '(' sum (',' sum)* ')' | '(' sum ')'
//! ```
//!
//! Functions are `Min`, `Max`, `FloorDiv`, `Mod` and `floor`. A text that is not of this form is a
//! name as a whole: exporters write what they like.

use super::error::ImportError;
use super::wire::{Dimension, DimensionValue};
use std::collections::{BTreeMap, BTreeSet};

/// How deep parentheses may nest.
const MAX_DEPTH: usize = 50;

/// The extents of a model's inputs, and which names they need.
#[derive(Debug)]
pub(super) struct Symbols<'a> {
    bindings: &'a BTreeMap<String, u64>,
    known: BTreeSet<String>,
    unbound: Vec<String>,
}

impl<'a> Symbols<'a> {
    pub(super) fn new(bindings: &'a BTreeMap<String, u64>) -> Self {
        Self { bindings, known: BTreeSet::new(), unbound: Vec::new() }
    }

    /// The extent of dimension `index` of `input`. Where a name is not bound it is noted, and the
    /// result means nothing.
    pub(super) fn extent(
        &mut self,
        input: &str,
        index: usize,
        dim: &Dimension,
    ) -> Result<u64, ImportError> {
        let bad = |text: String, why| {
            Err(ImportError::Dimension { input: input.to_string(), index, text, why })
        };
        let text = match &dim.value {
            // -1 is what older converters write for an extent that they do not know.
            Some(DimensionValue::Value(-1)) | None => "",
            Some(DimensionValue::Value(n)) => {
                return u64::try_from(*n).or_else(|_| {
                    bad(n.to_string(), "an extent cannot be negative; give the dimension a name")
                });
            }
            Some(DimensionValue::Param(text)) => text.trim(),
        };
        let expr = match text {
            whole if self.bindings.contains_key(whole) => Expr::Name(whole.to_string()),
            text => expression(input, index, text),
        };
        match self.value(&expr) {
            Some(n) => u64::try_from(n).or_else(|_| {
                bad(format!("`{text}` = {n}"), "an extent cannot be negative or beyond 2^64")
            }),
            None if self.unbound.is_empty() => {
                bad(format!("`{text}`"), "it divides by zero or overflows")
            }
            None => Ok(0),
        }
    }

    /// After all inputs: an error if a name has no value, or a value no name.
    pub(super) fn finish(self) -> Result<(), ImportError> {
        if !self.unbound.is_empty() {
            return Err(ImportError::Unbound { names: self.unbound });
        }
        match self.bindings.keys().find(|name| !self.known.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(ImportError::UnknownBinding {
                name: name.clone(),
                known: self.known.into_iter().collect(),
            }),
        }
    }

    /// The value of an expression; `None` if a name is unbound, or arithmetic fails. Every name in
    /// it is noted.
    fn value(&mut self, expr: &Expr) -> Option<i128> {
        expr.value(&mut |name| {
            self.known.insert(name.to_string());
            let value = self.bindings.get(name).copied();
            if value.is_none() && !self.unbound.iter().any(|n| n == name) {
                self.unbound.push(name.to_string());
            }
            value
        })
    }
}

/// What the text of dimension `index` of `input` stands for.
fn expression(input: &str, index: usize, text: &str) -> Expr {
    match text {
        "" | "?" | "None" => Expr::Name(format!("{input}.{index}")),
        text => parse(text).unwrap_or_else(|| Expr::Name(text.to_string())),
    }
}

/// The values of names under which dimensions have these extents, as far as each follows from one
/// dimension: from a name that stands alone, or from a linear expression with one name that does not.
pub(super) fn solve(dims: &[(&str, usize, &Dimension, u64)]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut expressions = Vec::new();
    for &(input, index, dim, extent) in dims {
        let text = match &dim.value {
            Some(DimensionValue::Param(text)) => text.trim(),
            Some(DimensionValue::Value(n)) if *n >= 0 => continue,
            _ => "",
        };
        match expression(input, index, text) {
            Expr::Name(name) => drop(found.insert(name, extent)),
            expr => expressions.push((expr, i128::from(extent))),
        }
    }
    for (expr, extent) in expressions {
        let mut unknown = BTreeSet::new();
        expr.value(&mut |name| {
            let value = found.get(name).copied();
            value.is_none().then(|| unknown.insert(name.to_string()));
            value
        });
        let at = |x: i128| {
            let x = u64::try_from(x).ok()?;
            expr.value(&mut |name| found.get(name).copied().or(Some(x)))
        };
        let (Some(name), Some(start), Some(next)) = (unknown.pop_first(), at(0), at(1)) else {
            continue;
        };
        let solution = (extent - start).checked_div(next - start);
        if let Some(x) = solution.filter(|&x| unknown.is_empty() && at(x) == Some(extent)) {
            found.insert(name, x as u64);
        }
    }
    found
}

/// The extent of a declared dimension, if the bindings give it.
pub(super) fn known(dim: &Dimension, bindings: &BTreeMap<String, u64>) -> Option<u64> {
    match dim.value.as_ref()? {
        DimensionValue::Value(n) => u64::try_from(*n).ok(),
        DimensionValue::Param(text) => {
            let text = text.trim();
            let whole = bindings.get(text).copied();
            let value = || parse(text)?.value(&mut |name| bindings.get(name).copied());
            whole.or_else(|| u64::try_from(value()?).ok())
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Number(u64),
    Name(String),
    /// Applied from left to right; never without arguments.
    Apply(Function, Vec<Expr>),
}

impl Expr {
    /// The value under these values of names; `None` if a name has none, or arithmetic fails. Every
    /// name is looked up.
    fn value(&self, lookup: &mut impl FnMut(&str) -> Option<u64>) -> Option<i128> {
        match self {
            Self::Number(n) => Some(i128::from(*n)),
            Self::Name(name) => lookup(name).map(i128::from),
            Self::Apply(f, args) => {
                let args: Vec<Option<i128>> = args.iter().map(|a| a.value(lookup)).collect();
                let args: Vec<i128> = args.into_iter().collect::<Option<_>>()?;
                args.iter().copied().skip(1).try_fold(args[0], |a, b| match f {
                    Function::Add => a.checked_add(b),
                    Function::Subtract => a.checked_sub(b),
                    Function::Multiply => a.checked_mul(b),
                    Function::Divide => a.checked_div_euclid(b),
                    Function::Remainder => a.checked_rem_euclid(b),
                    Function::Min => Some(a.min(b)),
                    Function::Max => Some(a.max(b)),
                })
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Min,
    Max,
}

fn parse(text: &str) -> Option<Expr> {
    let mut parser = Parser { rest: text, depth: 0 };
    let expr = parser.sum()?;
    parser.rest.trim().is_empty().then_some(expr)
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Option<Expr> {
        let mut left = self.product()?;
        loop {
            let f = match () {
                () if self.eat("+") => Function::Add,
                () if self.eat("-") => Function::Subtract,
                () => return Some(left),
            };
            left = Expr::Apply(f, vec![left, self.product()?]);
        }
    }

    fn product(&mut self) -> Option<Expr> {
        let mut left = self.unary()?;
        loop {
            let f = match () {
                () if self.eat("//") => Function::Divide,
                () if self.eat("*") => Function::Multiply,
                () if self.eat("%") => Function::Remainder,
                () => return Some(left),
            };
            left = Expr::Apply(f, vec![left, self.unary()?]);
        }
    }

    fn unary(&mut self) -> Option<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let expr = if self.eat("-") {
            Expr::Apply(Function::Subtract, vec![Expr::Number(0), self.unary()?])
        } else if self.eat("(") {
            let inner = self.sum()?;
            self.eat(")").then_some(inner)?
        } else {
            self.atom()?
        };
        self.depth -= 1;
        Some(expr)
    }

    fn atom(&mut self) -> Option<Expr> {
        let word = self.word()?;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.parse().ok().map(Expr::Number);
        }
        if !self.eat("(") {
            return Some(Expr::Name(word));
        }
        let mut args = vec![self.sum()?];
        while self.eat(",") {
            args.push(self.sum()?);
        }
        if !self.eat(")") {
            return None;
        }
        let f = match (word.as_str(), args.len()) {
            ("Min" | "min", _) => Function::Min,
            ("Max" | "max", _) => Function::Max,
            ("FloorDiv", 2) => Function::Divide,
            ("Mod" | "PythonMod", 2) => Function::Remainder,
            ("floor", 1) => return args.pop(),
            _ => return None,
        };
        Some(Expr::Apply(f, args))
    }

    /// A number or a name. A `-` between a character and a letter belongs to the name: exporters
    /// put spaces around operators.
    fn word(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        let mut end = 0;
        let mut chars = self.rest.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let next_is_letter = chars.peek().is_some_and(|(_, c)| c.is_alphabetic());
            if c.is_alphanumeric() || "_.:#@".contains(c) || (c == '-' && at > 0 && next_is_letter)
            {
                end = at + c.len_utf8();
            } else {
                break;
            }
        }
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then(|| word.to_string())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn eval(text: &str, bind: &[(&str, u64)]) -> Result<u64, String> {
        let bindings = bind.iter().map(|(n, v)| ((*n).to_string(), *v)).collect();
        let mut symbols = Symbols::new(&bindings);
        let value = Some(DimensionValue::Param(text.to_string()));
        let extent = symbols.extent("x", 1, &Dimension { value, denotation: None });
        let extent = extent.map_err(|e| e.to_string())?;
        symbols.finish().map_err(|e| e.to_string())?;
        Ok(extent)
    }

    #[test]
    fn expressions_evaluate() {
        let bind = [("batch", 6), ("seq", 9)];
        for (text, expected) in [
            ("batch*seq", 54),
            ("2*batch*seq", 108),
            ("((batch*seq)//4)", 13),
            ("Min(512, seq) + batch - batch", 9),
            ("Max(seq, batch, 100)*0 + seq*batch", 54),
            ("seq - 1 + 0*batch", 8),
            ("seq % 4 + 0*batch", 1),
            ("-batch + 2*seq", 12),
            ("FloorDiv(seq, 2)*1 + Mod(batch, 4) - 2", 4),
        ] {
            assert_eq!(eval(text, &bind), Ok(expected), "{text}");
        }
    }

    #[test]
    fn numbers_and_odd_names() {
        assert_eq!(eval("16", &[]), Ok(16));
        assert_eq!(eval("p2o.DynamicDimension.0", &[("p2o.DynamicDimension.0", 3)]), Ok(3));
        assert_eq!(eval("batch-size", &[("batch-size", 3)]), Ok(3));
        assert_eq!(eval("a b c", &[("a b c", 3)]), Ok(3));
        assert_eq!(eval("?", &[("x.1", 3)]), Ok(3));
        assert_eq!(eval("", &[("x.1", 3)]), Ok(3));
        assert_eq!(eval("größe", &[("größe", 3)]), Ok(3));
    }

    #[test]
    fn bindings_follow_from_extents() {
        let param = |text: &str| Dimension {
            value: (!text.is_empty()).then(|| DimensionValue::Param(text.to_string())),
            denotation: None,
        };
        let unknown = Dimension { value: Some(DimensionValue::Value(-1)), denotation: None };
        let found = |dims: &[(&Dimension, u64)]| {
            let dims: Vec<_> = dims.iter().enumerate().map(|(i, &(d, n))| ("x", i, d, n)).collect();
            let text = |(name, n)| format!("{name}={n}");
            solve(&dims).into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        let (past, batch, both) = (param("past + 1"), param("batch"), param("2*batch*past"));
        assert_eq!(found(&[(&past, 8), (&batch, 3), (&both, 42)]), "batch=3 past=7");
        assert_eq!(found(&[(&unknown, 8), (&param(""), 3), (&param("16"), 16)]), "x.0=8 x.1=3");
        // Not one unknown, not linear, or no extent at all.
        assert_eq!(found(&[(&both, 42)]), "");
        assert_eq!(found(&[(&param("batch//2"), 3), (&param("batch + 9"), 3)]), "");

        let bound = BTreeMap::from([("past".to_string(), 7)]);
        assert_eq!(known(&past, &bound), Some(8));
        assert_eq!(known(&param("past - 9"), &bound), None);
        assert_eq!(known(&both, &bound), None);
        assert_eq!(known(&unknown, &bound), None);
    }

    #[test]
    fn minus_one_is_an_anonymous_name() {
        let dim = Dimension { value: Some(DimensionValue::Value(-1)), denotation: None };
        let bound = BTreeMap::from([("x.0".to_string(), 4)]);
        assert_eq!(Symbols::new(&bound).extent("x", 0, &dim).unwrap(), 4);
        let dim = Dimension { value: Some(DimensionValue::Value(-2)), denotation: None };
        assert!(Symbols::new(&bound).extent("x", 0, &dim).is_err());
    }

    #[test]
    fn errors_say_what_to_do() {
        let e = eval("batch*seq", &[]).unwrap_err();
        assert!(e.contains("`batch`, `seq`") && e.contains("--bind batch=8,seq=128"), "{e}");
        let e = eval("batch", &[("batch", 1), ("sequence", 2)]).unwrap_err();
        assert!(e.contains("sequence") && e.contains("batch"), "{e}");
        for text in ["batch - 7", "batch // 0", "batch*4000000000*4000000000*4000000000"] {
            let e = eval(text, &[("batch", 6)]).unwrap_err();
            assert!(e.contains("`x`, dimension 1"), "{text}: {e}");
        }
    }

    #[test]
    fn hostile_text_is_a_name() {
        let deep = "(".repeat(100_000);
        assert!(eval(&deep, &[]).unwrap_err().contains("--bind"));
        let deep = "-".repeat(100_000);
        assert!(eval(&deep, &[]).unwrap_err().contains("--bind"));
    }
}
