//! What partitioning must give: right numbers, verified programs, and errors that say what is wrong.

mod dynamic;
mod layers;
mod overlap;
mod partition;
mod random;
mod schedule;
mod verify;
