//! How long and how big: a pure cost model over profiles that are data.
