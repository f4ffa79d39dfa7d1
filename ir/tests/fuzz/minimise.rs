//! Makes a finding's file smaller: takes away what it does not need.

use planc_ir::onnx::wire::{GraphProto, ModelProto, NodeProto};
use prost::Message as _;

/// A file that `fails` still, and of which no part can be removed.
pub fn minimise(bytes: &[u8], fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let Ok(mut model) = ModelProto::decode(bytes) else { return bytes.to_vec() };
    if !fails(&model.encode_to_vec()) {
        return bytes.to_vec(); // it is in how the message is written
    }
    loop {
        let (mut changed, mut list) = (false, 0);
        while list < lists(&mut model) {
            let mut at = 0;
            while let Some(smaller) = without(&model, list, at) {
                if fails(&smaller.encode_to_vec()) {
                    (model, changed) = (smaller, true);
                } else {
                    at += 1;
                }
            }
            list += 1;
        }
        if !changed {
            return model.encode_to_vec();
        }
    }
}

/// The model without element `at` of its list number `list`, if it has such an element.
fn without(model: &ModelProto, list: usize, at: usize) -> Option<ModelProto> {
    let (mut smaller, mut number, mut removed) = (model.clone(), 0, false);
    visit(&mut smaller, &mut |parts| {
        if number == list && at < parts.len() {
            parts.remove(at);
            removed = true;
        }
        number += 1;
    });
    removed.then_some(smaller)
}

fn lists(model: &mut ModelProto) -> usize {
    let mut number = 0;
    visit(model, &mut |_| number += 1);
    number
}

/// A list of parts, whatever they are.
trait List {
    fn len(&self) -> usize;
    fn remove(&mut self, at: usize);
}

impl<T> List for Vec<T> {
    fn len(&self) -> usize {
        self.len()
    }
    fn remove(&mut self, at: usize) {
        Vec::remove(self, at);
    }
}

/// Calls `f` with each list of a model whose elements may be superfluous, those outside first.
fn visit(model: &mut ModelProto, f: &mut dyn FnMut(&mut dyn List)) {
    f(&mut model.metadata_props);
    f(&mut model.training_info);
    f(&mut model.opset_import);
    f(&mut model.functions);
    for function in &mut model.functions {
        visit_nodes(&mut function.node, f);
    }
    if let Some(graph) = &mut model.graph {
        visit_graph(graph, f);
    }
}

fn visit_graph(graph: &mut GraphProto, f: &mut dyn FnMut(&mut dyn List)) {
    f(&mut graph.output);
    visit_nodes(&mut graph.node, f);
    f(&mut graph.initializer);
    f(&mut graph.sparse_initializer);
    f(&mut graph.input);
    f(&mut graph.value_info);
}

fn visit_nodes(nodes: &mut Vec<NodeProto>, f: &mut dyn FnMut(&mut dyn List)) {
    f(nodes);
    for node in nodes {
        f(&mut node.attribute);
        for attribute in &mut node.attribute {
            if let Some(body) = &mut attribute.g {
                visit_graph(body, f);
            }
        }
    }
}
