//! Counts of n-grams.
//!
//! - **ONNX**: TfIdfVectorizer (since 9), of integers.
//! - **Semantics**: for each row, how often each n-gram of a pool occurs in it, its tokens next to
//!   each other or evenly apart with up to `max_skip` tokens between them; the counts may be cut to
//!   1 and weighted.
//! - **Split**: rows are parallel, a row stays whole.

use super::decode::{Attribute, Decoder, DecoderEntry, ResultType};
use super::{Build, OpDef, Work, expect_inputs};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts the n-grams of rows `[columns]` or `[rows, columns]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TfIdf {
    /// The n-grams, each with the index of its count in the output.
    pub pool: Vec<(Vec<i64>, u64)>,
    /// The lengths of n-grams that are counted.
    pub lengths: (u64, u64),
    /// How many tokens may lie between two tokens of an n-gram.
    pub max_skip: u64,
    /// Whether more than one occurrence counts as one.
    pub once: bool,
    /// What each count is multiplied by, if anything.
    pub weights: Option<Vec<f32>>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("TfIdfVectorizer", 9, decode)
    .results(&[ResultType::Element(DType::F32)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    if d.attribute("pool_strings").is_some() {
        return Err(OpError::Unsupported("n-grams of strings".into()));
    }
    let required = |name| d.ints(name)?.ok_or(OpError::MissingAttribute { name });
    let count = |name: &'static str, default: Option<i64>| {
        let n = d.int(name)?.or(default).ok_or(OpError::MissingAttribute { name })?;
        u64::try_from(n)
            .map_err(|_| OpError::BadAttribute { name, why: format!("{n} is negative") })
    };
    let tokens = required("pool_int64s")?;
    let starts = required("ngram_counts")?;
    let mut columns = required("ngram_indexes")?.into_iter();
    // The pool holds all 1-grams, then all 2-grams, and so on.
    let mut pool = Vec::new();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(tokens.len() as i64);
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let part = part.and_then(|(start, end)| tokens.get(start..end));
        let part = part.filter(|part| part.len() % (i + 1) == 0).ok_or_else(|| {
            let why = format!("{start} to {end} are no {}-grams of the pool", i + 1);
            OpError::BadAttribute { name: "ngram_counts", why }
        })?;
        for gram in part.chunks(i + 1) {
            let column = columns.next().and_then(|c| u64::try_from(c).ok());
            let column = column.ok_or_else(|| OpError::BadAttribute {
                name: "ngram_indexes",
                why: "expected one index an n-gram, none negative".into(),
            })?;
            pool.push((gram.to_vec(), column));
        }
    }
    let weights = match d.attribute("weights") {
        None => None,
        Some(Attribute::Floats(w)) if w.iter().all(|w| w.is_finite()) => Some(w.clone()),
        Some(_) => {
            let why = "expected a list of finite floats".into();
            return Err(OpError::BadAttribute { name: "weights", why });
        }
    };
    let (once, weights) = match d.string_or("mode", "")?.as_str() {
        "TF" => (false, None),
        "IDF" => (true, weights),
        "TFIDF" => (false, weights),
        other => {
            let why = format!("expected TF, IDF or TFIDF, found {other:?}");
            return Err(OpError::BadAttribute { name: "mode", why });
        }
    };
    let lengths = (count("min_gram_length", None)?, count("max_gram_length", None)?);
    let max_skip = count("max_skip_count", Some(0))?;
    let op = TfIdf { pool, lengths, max_skip, once, weights };
    Ok(vec![d.push(op, &[d.input(0)?])?])
}

impl TfIdf {
    fn columns(&self) -> u64 {
        self.pool.iter().map(|(_, column)| column.saturating_add(1)).max().unwrap_or(0)
    }

    /// Adds what occurs in a row to its counts.
    fn count(&self, pool: &BTreeMap<&[i64], usize>, row: &[i64], counts: &mut [f64]) {
        let longest = self.pool.iter().map(|(gram, _)| gram.len()).max().unwrap_or(0);
        for length in self.lengths.0.max(1)..=self.lengths.1.min(longest as u64) {
            let length = length as usize;
            // A single token lies next to itself, whatever may be skipped.
            let most = if length == 1 { 0 } else { self.max_skip.min(row.len() as u64) };
            for distance in 1..=most as usize + 1 {
                let span = (length - 1) * distance;
                for start in 0..row.len().saturating_sub(span) {
                    let gram: Vec<i64> =
                        row[start..=start + span].iter().step_by(distance).copied().collect();
                    if let Some(&column) = pool.get(&gram[..]) {
                        counts[column] += 1.0;
                    }
                }
            }
        }
    }
}

impl OpDef for TfIdf {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let x = &inputs[0];
        if !x.dtype.is_int() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        let columns = self.columns();
        if self.weights.as_ref().is_some_and(|w| (w.len() as u64) < columns) {
            let why = format!("expected {columns} or more");
            return Err(OpError::BadAttribute { name: "weights", why });
        }
        let shape = match x.shape[..] {
            [_] => vec![columns],
            [rows, _] => vec![rows, columns],
            _ => {
                let expected = "1 or 2".to_string();
                return Err(OpError::Rank { index: 0, found: x.rank(), expected });
            }
        };
        Ok(vec![TensorType::new(DType::F32, shape)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        if let [rows, _] = inputs[0].shape[..] {
            let rows = rule.factor("rows", rows, FactorKind::Parallel);
            rule.input([Some(rows), None]);
            rule.output([Some(rows), None]);
        } else {
            rule.input([None]);
            rule.output([None]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 1.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let invalid = |e: OpError| EvalError::Invalid(e.to_string());
        let ty = self.infer(&[inputs[0].ty().clone()], &[]).map_err(invalid)?.remove(0);
        let columns = self.columns() as usize;
        let mut counts = Tensor::zeros(ty.clone())?.to_f64s();
        let tokens = inputs[0].to_i64s();
        let width = inputs[0].shape().last().map_or(1, |&n| n as usize).max(1);
        let pool = self.pool.iter().map(|(gram, column)| (&gram[..], *column as usize)).collect();
        for (row, counts) in tokens.chunks(width).zip(counts.chunks_mut(columns.max(1))) {
            self.count(&pool, row, counts);
        }
        Ok(vec![Tensor::from_f64(ty, |i| {
            let count = if self.once { counts[i].min(1.0) } else { counts[i] };
            count * self.weights.as_ref().map_or(1.0, |w| f64::from(w[i % columns]))
        })?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
