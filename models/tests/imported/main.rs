//! What the built models compute: imported, verified and evaluated.

mod formulas;
mod properties;
mod support;
