//! Which operators have a decoder, and the list of those that are missing.

use super::build::Importer;
use super::error::{ImportError, UnsupportedOp};
use super::functions::{Item, Opsets, bodies};
use super::wire::NodeProto;
use crate::ops::{self, DecoderEntry};
use std::collections::HashMap;
use std::rc::Rc;

/// Decoders by domain and operator.
pub(super) type Decoders = HashMap<(&'static str, &'static str), Vec<&'static DecoderEntry>>;

/// The op table's decoders.
pub(super) fn decoders() -> Decoders {
    let mut by_name = Decoders::new();
    for entry in ops::decoders() {
        by_name.entry((entry.domain, entry.name)).or_default().push(entry);
    }
    by_name
}

impl Importer<'_> {
    /// The entry that decodes a node, noting it if there is none.
    pub(super) fn decoder(
        &mut self,
        item: &Item<'_>,
    ) -> Result<Option<&'static DecoderEntry>, ImportError> {
        let version = item.version()?;
        let entry = self.entry(item.domain(), item.node.op_type(), version);
        if entry.is_none() {
            self.survey(&item.node, &item.opsets);
        }
        Ok(entry)
    }

    pub(super) fn entry(
        &self,
        domain: &str,
        op_type: &str,
        version: i64,
    ) -> Option<&'static DecoderEntry> {
        let entries = self.decoders.get(&(domain, op_type))?;
        entries.iter().filter(|e| e.since <= version).max_by_key(|e| e.since).copied()
    }

    /// Notes a node and those in its bodies, as far as no decoder knows them.
    pub(super) fn survey(&mut self, node: &NodeProto, opsets: &Rc<Opsets>) {
        let mut todo = vec![node];
        while let Some(node) = todo.pop() {
            let item = self.library.item(node, opsets);
            if let Some(item) = item {
                let version = item.opsets.get(item.domain()).copied().unwrap_or(0);
                if self.entry(item.domain(), node.op_type(), version).is_none() {
                    self.note(item.domain(), node.op_type(), None, item.name());
                }
            }
            todo.extend(bodies(node).flat_map(|g| &g.node));
        }
    }

    /// Notes that a use of an operator is unsupported.
    pub(super) fn note_use(&mut self, item: &Item<'_>, why: String) {
        self.note(item.domain(), item.node.op_type(), Some(why), item.name());
    }

    pub(super) fn note(&mut self, domain: &str, op_type: &str, why: Option<String>, node: String) {
        let (domain, op_type) = (domain.to_string(), op_type.to_string());
        let nodes = self.unsupported.ops.entry(UnsupportedOp { domain, op_type, why }).or_default();
        nodes.push(node);
    }
}
