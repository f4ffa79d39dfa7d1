//! `planc model FAMILY`: write a model of a known family as ONNX.

use super::error::CliError;
use super::{Outcome, ok};
use planc_ir::DType;
use planc_models::{Config, FAMILIES, Size, Weights};
use std::fmt::Write as _;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = families())]
pub struct Args {
    /// The family, such as gpt.
    #[arg(value_name = "FAMILY")]
    family: String,
    /// Where the model goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Blocks (linear layers for an MLP).
    #[arg(long, value_name = "N")]
    layers: Option<u64>,
    /// Width of the hidden state.
    #[arg(long, value_name = "N")]
    hidden: Option<u64>,
    /// Attention heads.
    #[arg(long, value_name = "N")]
    heads: Option<u64>,
    /// Heads of keys and values, for grouped-query attention.
    #[arg(long, value_name = "N")]
    kv_heads: Option<u64>,
    /// Width inside a block's MLP.
    #[arg(long, value_name = "N")]
    ffn: Option<u64>,
    /// Tokens in the vocabulary.
    #[arg(long, value_name = "N")]
    vocab: Option<u64>,
    /// Tokens in a sequence.
    #[arg(long, value_name = "N")]
    seq: Option<u64>,
    /// Input features.
    #[arg(long, value_name = "N")]
    inputs: Option<u64>,
    /// Output features.
    #[arg(long, value_name = "N")]
    outputs: Option<u64>,
    /// Rows of a batch; symbolic (`batch`) if not given.
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Leave the sequence's length symbolic (`seq`).
    #[arg(long)]
    symbolic_seq: bool,
    /// Type of weights and activations: f32, f16 or bf16.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    dtype: DType,
    /// Whether the head is the token embedding.
    #[arg(long, value_name = "BOOL")]
    tied: Option<bool>,
    /// `none` leaves the weights out, which is enough to plan; `random` writes seeded random ones.
    #[arg(long, value_name = "KIND", default_value = "none", value_parser = ["none", "random"])]
    weights: String,
    /// Seed of random weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::from_name(text).ok_or_else(|| "expected f32, f16 or bf16".to_string())
}

fn families() -> String {
    let mut text = String::from("Families:");
    for family in FAMILIES {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {:<8}{}", family.name, family.summary);
    }
    text
}

pub fn run(args: &Args) -> Result<Outcome, CliError> {
    let sizes = [
        (Size::Layers, args.layers),
        (Size::Hidden, args.hidden),
        (Size::Heads, args.heads),
        (Size::KvHeads, args.kv_heads),
        (Size::Ffn, args.ffn),
        (Size::Vocab, args.vocab),
        (Size::Seq, args.seq),
        (Size::Inputs, args.inputs),
        (Size::Outputs, args.outputs),
    ];
    let config = Config {
        sizes: sizes.into_iter().filter_map(|(size, value)| Some((size, value?))).collect(),
        batch: args.batch,
        symbolic_seq: args.symbolic_seq,
        dtype: args.dtype,
        tied: args.tied,
        weights: match args.weights.as_str() {
            "random" => Weights::Random { seed: args.seed },
            _ => Weights::Stripped,
        },
    };
    let model = planc_models::build(&args.family, &config)?;
    planc_models::write(&model, &args.out)?;
    say!("{}", args.out.display());
    ok()
}
