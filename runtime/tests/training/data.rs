//! Training data in files.

use crate::common::{f32s, numbers};
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::data::{DataError, TrainingData};
use planc_runtime::safetensors_file::write;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

fn file(path: &Path, tensors: &BTreeMap<&str, Tensor>) {
    let types = tensors.iter().map(|(n, t)| (*n, t.ty())).collect();
    let contents = |name: &str| Ok::<_, std::io::Error>(tensors[name].to_bytes());
    write(File::create(path).unwrap(), &types, ("made by", "a test"), contents).unwrap();
}

/// Rows `begin..` of a tensor, as a tensor of type `ty`.
fn rows(t: &Tensor, begin: usize, ty: &TensorType) -> Tensor {
    let at = begin * ty.elements() as usize;
    Tensor::from_f64(ty.clone(), |i| t.f64_at(at + i)).unwrap()
}

#[test]
fn batches_follow_each_other_and_begin_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let (x, t, mask) = (f32s([2, 3]), TensorType::new(DType::I64, [2]), f32s([3]));
    let data = BTreeMap::from([
        ("x", numbers(f32s([5, 2, 3]), 1)),
        ("t", numbers(TensorType::new(DType::I64, [10]), 2)),
        ("mask", numbers(f32s([3]), 3)),
        ("other", numbers(f32s([7]), 4)),
    ]);
    file(&path, &data);
    let inputs = [("x", &x), ("t", &t), ("mask", &mask)].into();
    let found = TrainingData::open(&path, &inputs).unwrap();
    assert_eq!(found.batches(), 5);
    for n in [0, 1, 4, 5, 12, u64::MAX] {
        let batch = found.batch(n).unwrap();
        let at = (n % 5) as usize;
        let expected = [
            ("x", rows(&data["x"], at, &x)),
            ("t", rows(&data["t"], at, &t)),
            ("mask", data["mask"].clone()),
        ];
        assert_eq!(batch, expected.map(|(n, t)| (n.to_string(), t)).into());
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let good = BTreeMap::from([("x", numbers(f32s([6, 3]), 1)), ("t", numbers(f32s([3]), 2))]);
    let (x, t) = (f32s([2, 3]), f32s([]));
    let inputs = BTreeMap::from([("x", &x), ("t", &t)]);
    let error = |tensors: &BTreeMap<&str, Tensor>| {
        file(&path, tensors);
        TrainingData::open(&path, &inputs).unwrap_err()
    };
    let mut without = good.clone();
    without.remove("t");
    let found = error(&without);
    assert!(matches!(&found, DataError::Missing { name, .. } if name == "t"), "{found}");
    assert!(found.to_string().ends_with("it has x"), "{found}");
    for other in [
        f32s([5, 3]),
        f32s([6, 4]),
        f32s([3]),
        f32s([1, 2, 2, 3]),
        TensorType::new(DType::F64, [6, 3]),
    ] {
        let mut tensors = good.clone();
        tensors.insert("x", numbers(other, 1));
        let found = error(&tensors);
        assert!(matches!(&found, DataError::Type { name, .. } if name == "x"), "{found}");
    }
    let mut tensors = good.clone();
    tensors.insert("t", numbers(f32s([4]), 1));
    let found = error(&tensors);
    assert!(matches!(found, DataError::Batches { batches: 3, other_batches: 4, .. }), "{found}");
    tensors.insert("t", numbers(f32s([0]), 1));
    let found = error(&tensors);
    assert!(matches!(&found, DataError::Empty { name } if name == "t"), "{found}");
    std::fs::write(&path, b"not such a file").unwrap();
    assert!(matches!(TrainingData::open(&path, &inputs), Err(DataError::File(_))));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(TrainingData::open(&path, &inputs), Err(DataError::File(_))));
}
