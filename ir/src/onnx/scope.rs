//! The module path of a node: which part of the user's program it comes from.

use super::wire::{NodeProto, StringStringEntryProto};

/// The module path, joined by dots (`model.layers.0.self_attn`), or an empty text.
///
/// PyTorch's newer exporter writes it into the node's metadata; the older one names nodes
/// `/model/layers.0/self_attn/MatMul`.
pub(super) fn of(node: &NodeProto) -> String {
    let entry = |key: &str| {
        node.metadata_props.iter().find(|e| e.key() == key).map(StringStringEntryProto::value)
    };
    if let Some(scope) = entry("pkg.torch.onnx.name_scopes").and_then(from_name_scopes) {
        return scope;
    }
    if let Some(scope) = entry("namespace").and_then(from_namespace) {
        return scope;
    }
    from_name(node.name()).unwrap_or_default()
}

/// `['', 'model', 'model.layers.0', 'view_5']`: the last entry is the node, the one before it where
/// it is.
fn from_name_scopes(list: &str) -> Option<String> {
    let list = list.strip_prefix('[')?.strip_suffix(']')?;
    let mut entries = list.rsplit(", ").map(|e| e.trim_matches(['\'', '"']));
    entries.next()?;
    entries.next().map(str::to_string)
}

/// `: Wrap/model: pkg.Model/model.layers.0: pkg.Layer/view_5: aten.view.default`, the same with
/// the classes.
fn from_namespace(list: &str) -> Option<String> {
    let mut entries = list.rsplit('/');
    entries.next()?;
    let (path, _) = entries.next()?.split_once(": ")?;
    Some(path.to_string())
}

/// `/model/layers.0/self_attn/MatMul`.
fn from_name(name: &str) -> Option<String> {
    let (path, _) = name.strip_prefix('/')?.rsplit_once('/')?;
    Some(path.replace('/', "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, metadata: &[(&str, &str)]) -> NodeProto {
        let entry = |(k, v): &(&str, &str)| StringStringEntryProto {
            key: Some((*k).to_string()),
            value: Some((*v).to_string()),
        };
        NodeProto {
            name: Some(name.to_string()),
            metadata_props: metadata.iter().map(entry).collect(),
            ..NodeProto::default()
        }
    }

    #[test]
    fn reads_what_exporters_write() {
        let scopes = "['', 'model', 'model.h.0', 'model.h.0.attn', 'view_5']";
        let n = node("node_view_5", &[("pkg.torch.onnx.name_scopes", scopes)]);
        assert_eq!(of(&n), "model.h.0.attn");
        let space = ": c.Wrap/model: t.Model/model.h.0.attn: t.Attention/view_5: aten.view.default";
        assert_eq!(of(&node("node_view_5", &[("namespace", space)])), "model.h.0.attn");
        assert_eq!(of(&node("/model/h.0/attn/Gather_5", &[])), "model.h.0.attn");
        assert_eq!(of(&node("Constant_429", &[])), "");
        assert_eq!(of(&node("/MatMul", &[])), "");
    }
}
