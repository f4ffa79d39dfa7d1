//! What to build: the sizes and choices that the families share.

use crate::ModelError;
use planc_ir::DType;
use std::collections::BTreeMap;

/// A size of a model. Which ones a family has, and their defaults, stands in its
/// [`Family`](crate::Family).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Size {
    /// Blocks, or for an MLP its linear layers.
    Layers,
    /// Width of the residual stream, or of an MLP's hidden layers.
    Hidden,
    /// Attention heads.
    Heads,
    /// Heads of keys and values, each shared by a group of query heads.
    KvHeads,
    /// Width between the two halves of a block's MLP.
    Ffn,
    /// Tokens in the vocabulary.
    Vocab,
    /// Tokens in a sequence; the largest number of them where it is symbolic.
    Seq,
    /// Input features.
    Inputs,
    /// Output features.
    Outputs,
}

impl Size {
    /// Every size, in declaration order.
    pub const ALL: [Self; 9] = [
        Self::Layers,
        Self::Hidden,
        Self::Heads,
        Self::KvHeads,
        Self::Ffn,
        Self::Vocab,
        Self::Seq,
        Self::Inputs,
        Self::Outputs,
    ];

    /// The name as a user writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Hidden => "hidden",
            Self::Heads => "heads",
            Self::KvHeads => "kv-heads",
            Self::Ffn => "ffn",
            Self::Vocab => "vocab",
            Self::Seq => "seq",
            Self::Inputs => "inputs",
            Self::Outputs => "outputs",
        }
    }

    /// What it is, in one line.
    pub const fn help(self) -> &'static str {
        match self {
            Self::Layers => "blocks (linear layers for an MLP)",
            Self::Hidden => "width of the hidden state",
            Self::Heads => "attention heads",
            Self::KvHeads => "heads of keys and values, for grouped-query attention",
            Self::Ffn => "width inside a block's MLP",
            Self::Vocab => "tokens in the vocabulary",
            Self::Seq => "tokens in a sequence; their maximum if the sequence is symbolic",
            Self::Inputs => "input features",
            Self::Outputs => "output features",
        }
    }

    /// The largest value that is accepted. The number of nodes grows with the layers, so these are
    /// bounded closely; the others only so that products of two fit in 64 bits.
    const fn most(self) -> u64 {
        match self {
            Self::Layers => 4096,
            _ => 1 << 31,
        }
    }
}

/// The value of a size that a configuration does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// This one.
    Is(u64),
    /// Another size, listed before, times `numerator / denominator`, rounded down.
    Of {
        /// The other size.
        size: Size,
        /// Numerator.
        numerator: u64,
        /// Denominator.
        denominator: u64,
    },
}

/// What stands in the file for the model's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Only their types: each names a range of a side file that does not exist. Enough to plan, at
    /// any size.
    Stripped,
    /// Random numbers. The same seed gives the same bytes everywhere.
    Random {
        /// Seed.
        seed: u64,
    },
}

/// A configuration of a model of any family. Sizes that are not given have the family's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Sizes that differ from the family's defaults.
    pub sizes: BTreeMap<Size, u64>,
    /// Rows of a batch; `None` leaves the dimension symbolic, under the name `batch`.
    pub batch: Option<u64>,
    /// Whether the sequence's length stays symbolic, under the name `seq`.
    pub symbolic_seq: bool,
    /// Type of weights and activations: f32, f16 or bf16.
    pub dtype: DType,
    /// Whether the head is the token embedding, transposed, instead of a weight of its own; `None`
    /// for what is usual in the family.
    pub tied: Option<bool>,
    /// What stands for the parameters.
    pub weights: Weights,
}

impl std::default::Default for Config {
    fn default() -> Self {
        Self {
            sizes: BTreeMap::new(),
            batch: None,
            symbolic_seq: false,
            dtype: DType::F32,
            tied: None,
            weights: Weights::Stripped,
        }
    }
}

impl Config {
    /// With this size.
    #[must_use]
    pub fn with(mut self, size: Size, value: u64) -> Self {
        self.sizes.insert(size, value);
        self
    }
}

/// A family's sizes for one model, complete and in range.
#[derive(Clone, Debug)]
pub(crate) struct Sizes(BTreeMap<Size, u64>);

impl Sizes {
    /// The family's sizes, in which the configuration's replace the defaults.
    pub(crate) fn new(
        family: &'static str,
        defaults: &[(Size, Default)],
        config: &Config,
    ) -> Result<Self, ModelError> {
        if let Some(&size) = config.sizes.keys().find(|s| defaults.iter().all(|(d, _)| d != *s)) {
            let known: Vec<&str> = defaults.iter().map(|(s, _)| s.name()).collect();
            return Err(ModelError::Inapplicable { family, size, known: known.join(", ") });
        }
        let mut sizes = Self(BTreeMap::new());
        for &(size, default) in defaults {
            let value = config.sizes.get(&size).copied().unwrap_or_else(|| match default {
                Default::Is(value) => value,
                Default::Of { size, numerator, denominator } => {
                    (sizes.get(size) * numerator / denominator).max(1)
                }
            });
            let (least, most) = (1, size.most());
            if value < least || value > most {
                return Err(ModelError::OutOfRange { size, value, least, most });
            }
            sizes.0.insert(size, value);
        }
        Ok(sizes)
    }

    /// A size that the family has.
    pub(crate) fn get(&self, size: Size) -> u64 {
        self.0.get(&size).copied().unwrap_or(1)
    }

    /// Checks that one size is a multiple of another.
    pub(crate) fn divides(&self, divisor: Size, size: Size) -> Result<(), ModelError> {
        let (size_value, divisor_value) = (self.get(size), self.get(divisor));
        if size_value.is_multiple_of(divisor_value) {
            Ok(())
        } else {
            Err(ModelError::Indivisible { size, size_value, divisor, divisor_value })
        }
    }
}
