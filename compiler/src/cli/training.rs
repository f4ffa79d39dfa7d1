//! The arguments that say what a training step is.

use planc::stages::{Pipelines, Pipelining};
use planc::train::policy::Asked;
use planc::train::{Loss, Optimizer, Precision, Recompute, TrainOptions};
use planc_codegen::Schedule;
use planc_ir::ops::optimizer_step::Rule;

#[derive(Debug, clap::Args)]
pub struct TrainingArgs {
    /// Plan a training step: forward, loss, backward, gradient reduction, optimizer.
    #[arg(long)]
    train: bool,
    /// The loss: cross-entropy or mse (of the first output, or of another as in mse:NAME; labels or targets
    /// become an input), or output:NAME for an output that is the loss.
    #[arg(long, value_name = "LOSS", default_value = "cross-entropy", value_parser = parse_loss, requires = "train")]
    loss: Loss,
    /// The optimizer.
    #[arg(long, value_enum, default_value_t = Kind::Adamw, requires = "train")]
    optimizer: Kind,
    /// Momentum of SGD.
    #[arg(long, value_name = "X", default_value_t = 0.0, requires = "train")]
    momentum: f64,
    /// Nesterov's form of momentum.
    #[arg(long, requires = "train")]
    nesterov: bool,
    /// How much of the first moment Adam keeps.
    #[arg(long, value_name = "X", default_value_t = 0.9, requires = "train")]
    beta1: f64,
    /// How much of the second moment Adam keeps.
    #[arg(long, value_name = "X", default_value_t = 0.999, requires = "train")]
    beta2: f64,
    /// Added to the root of Adam's second moment.
    #[arg(long, value_name = "X", default_value_t = 1e-8, requires = "train")]
    epsilon: f64,
    /// Decay of weights; the default is 0.01 for AdamW and 0 for the others.
    #[arg(long, value_name = "X", requires = "train")]
    weight_decay: Option<f64>,
    /// Compute in this type where the model says f32; state stays f32.
    #[arg(long, value_enum, default_value_t = Type::Model, requires = "train")]
    precision: Type,
    /// Scale gradients down to this norm, taken over all of them.
    #[arg(long, value_name = "NORM", requires = "train")]
    clip_norm: Option<f64>,
    /// How often a step runs forward and backward, each time on inputs of the planned size.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "train")]
    micro_batches: u32,
    /// Leave weights of such names as they are; * stands for anything. May be given several times.
    #[arg(long, value_name = "PATTERN", requires = "train")]
    freeze: Vec<String>,
    /// What is computed again in the backward phase rather than kept; the default is what is best.
    #[arg(long, value_enum, requires = "train")]
    recompute: Option<Again>,
    /// Cut the step into a pipeline of so many stages, or of as many as are best (1 may be).
    #[arg(long, value_name = "STAGES|best", value_parser = parse_stages, requires = "train")]
    pipeline: Option<Stages>,
    /// What the stages run when: gpipe, 1f1b, interleaved, zb-h1 or zb-v.
    #[arg(long, value_name = "NAME", default_value = "1f1b", requires = "pipeline")]
    schedule: Schedule,
    /// Parts of the model on each stage; the default is two for interleaved and zb-v, and one for the others.
    #[arg(long, value_name = "N", requires = "pipeline")]
    chunks: Option<u32>,
    /// What decides which elements dropout drops.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "train")]
    dropout_seed: u32,
    /// Drop nothing.
    #[arg(long, requires = "train", conflicts_with = "dropout_seed")]
    no_dropout: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    Sgd,
    Adam,
    Adamw,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Type {
    /// As the model says.
    Model,
    Bf16,
    /// With a scaled loss.
    Fp16,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Again {
    Nothing,
    /// All but matrix products.
    Cheap,
    /// Everything within the repeated blocks.
    Blocks,
}

/// How many stages.
#[derive(Clone, Copy, Debug)]
enum Stages {
    Number(u32),
    Best,
}

fn parse_stages(text: &str) -> Result<Stages, String> {
    match (text, text.parse()) {
        ("best", _) => Ok(Stages::Best),
        (_, Ok(stages)) if stages > 0 => Ok(Stages::Number(stages)),
        _ => Err("expected a number of stages, or best".to_string()),
    }
}

fn parse_loss(text: &str) -> Result<Loss, String> {
    let (kind, output) = match text.split_once(':') {
        Some((kind, name)) => (kind, Some(name.to_string())),
        None => (text, None),
    };
    match (kind, output) {
        ("cross-entropy", output) => Ok(Loss::CrossEntropy { output }),
        ("mse", output) => Ok(Loss::MeanSquare { output }),
        ("output", Some(name)) => Ok(Loss::Output(name)),
        _ => Err("expected cross-entropy, mse or output:NAME".to_string()),
    }
}

impl TrainingArgs {
    /// Whether a training step is asked for.
    pub const fn is_asked(&self) -> bool {
        self.train
    }

    /// What the step is.
    pub fn options(&self) -> TrainOptions {
        let decay = |otherwise: f64| self.weight_decay.unwrap_or(otherwise);
        let adam = |decoupled: bool, otherwise: f64| Rule::Adam {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: decay(otherwise),
            decoupled,
        };
        let rule = match self.optimizer {
            Kind::Sgd => Rule::Sgd {
                momentum: self.momentum,
                dampening: 0.0,
                weight_decay: decay(0.0),
                nesterov: self.nesterov,
            },
            Kind::Adam => adam(false, 0.0),
            Kind::Adamw => adam(true, 0.01),
        };
        TrainOptions {
            loss: self.loss.clone(),
            optimizer: Optimizer(rule),
            precision: match self.precision {
                Type::Model => Precision::AsModel,
                Type::Bf16 => Precision::Bf16,
                Type::Fp16 => Precision::F16,
            },
            clip_norm: self.clip_norm,
            micro_batches: self.micro_batches,
            frozen: self.freeze.clone(),
            dropout: (!self.no_dropout).then_some(self.dropout_seed),
        }
    }

    /// The pipeline that is asked for.
    fn pipelines(&self) -> Option<Pipelines> {
        let least = match self.schedule {
            Schedule::Interleaved | Schedule::ZeroBubbleV => 2,
            _ => 1,
        };
        let (schedule, chunks) = (self.schedule, self.chunks.unwrap_or(least));
        self.pipeline.map(|stages| match stages {
            Stages::Best => Pipelines::Best,
            Stages::Number(stages) => Pipelines::Of(Pipelining { stages, schedule, chunks }),
        })
    }

    /// What is settled of how the step is carried out.
    pub fn asked(&self) -> Asked {
        let recompute = self.recompute.map(|again| match again {
            Again::Nothing => Recompute::Nothing,
            Again::Cheap => Recompute::Cheap,
            Again::Blocks => Recompute::Blocks(u32::MAX),
        });
        Asked { recompute, gather_again: None, pipeline: self.pipelines() }
    }
}
