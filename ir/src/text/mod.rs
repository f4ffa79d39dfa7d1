//! The textual form of a graph, which prints and parses back to an equal graph.
//!
//! One line a value or node; sources first, then nodes in topological order, then the outputs:
//!
//! ```text
//! graph "mlp" {
//!   %0 "x" = input : f32[2,8]
//!   %1 "w" = weight external("mlp.data", 0, 256) : f32[8,8]
//!   %2 "b" = constant [0.5] : f32[]
//!   %3 "h" = MatMul(%0, %1) {"trans_a":false,"trans_b":true} @ "fc/MatMul" scope "fc" : f32[2,8]
//!   %4 "y" = Map(%3, %2) {"f":"Add"} @ "fc/Add" : f32[2,8]
//!   output %4
//! }
//! ```
//!
//! The grammar, where `json` is any JSON value and `string` a JSON string:
//!
//! ```text
//! graph   = "graph" string "{" (source | node | output | step)* "}"
//! source  = def "=" ("input" | "weight" place | "constant" tensor) ":" type
//! place   = "file" "(" offset "," bytes ")" | "external" "(" string "," offset "," bytes ")" | tensor
//! tensor  = "[" numbers "]" | "base64" "(" string ")"
//! node    = defs "=" op "(" ids ")" json? "@" string ("scope" string)? ":" types
//!         | "Send" "(" ids ")" json? "@" string ("scope" string)?
//! output  = "output" id
//! step    = "carried" id id | "micro_batches" number | "under_way" number
//! def     = id string            id = "%" number
//! type    = dtype "[" extents "]"          `f32[*]` when the extents are known only at run time
//! ```
//!
//! A node's `json` is its op's attributes. White space separates tokens and means nothing more;
//! `//` starts a comment that ends with its line. Ids are kept: the parsed graph is equal to the
//! printed one, ids included. That holds for every graph that [`verify`](crate::verify::verify) accepts.

mod cursor;
mod literal;
mod parse;
mod print;

pub use cursor::{ParseError, ParseErrorKind};
pub use parse::parse;
pub use print::print;
