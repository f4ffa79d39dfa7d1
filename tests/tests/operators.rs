//! docs/operators.md is what `planc ops --markdown` writes.

use planc::report::operators::markdown;
use std::path::Path;

#[test]
fn the_table_of_operators_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operators.md");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == markdown(), "run `planc ops --markdown > docs/operators.md`");
}
