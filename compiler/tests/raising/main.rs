//! The rules that raise idioms, each on small graphs: the op that comes out, that it computes the same, and
//! what is left alone because it is something else.
#![allow(clippy::float_cmp)] // numbers that were put in come out

mod activations;
mod attentions;
mod build;
mod experts;
mod masks;
mod norms;
mod rotary;
