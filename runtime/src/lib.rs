//! A thin executor of rank programs: it decides nothing.
