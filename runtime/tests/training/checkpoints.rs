//! Checkpoints: what they hold, that they survive, and what is refused.

use crate::common::numbers;
use crate::model::{losses, plan, session, step};
use planc_ir::sharding::{Mesh, Strategy};
use planc_ir::{Tensor, TensorType};
use planc_runtime::checkpoint::{CheckpointError, latest, list, load, save};
use planc_runtime::safetensors_file::{SafetensorsError, SafetensorsFile, write};
use planc_runtime::{Session, WeightError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn mesh(ranks: u32) -> Mesh {
    Mesh::new([("a", ranks)])
}

#[test]
fn a_run_goes_on_under_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let states = folder.path().join("states");
    assert!(latest(&states).unwrap().is_none());
    let whole = losses(&mut session(folder.path(), &mesh(1), 0), 9);
    let mut four = session(folder.path(), &mesh(4), 3);
    losses(&mut four, 5);
    let path = save(&four, &states, 0).unwrap();
    assert_eq!(path, states.join("step-00000005.safetensors"));
    assert_eq!(latest(&states).unwrap().as_ref(), Some(&path));
    for (ranks, seed) in [(1, 0), (2, 1), (2, 4), (4, 3), (8, 2)] {
        let mut session = session(folder.path(), &mesh(ranks), seed);
        let before = session.weight_bytes_read();
        load(&mut session, &path).unwrap();
        // Each rank reads its parts: as many bytes as when it loaded them first.
        let read = session.weight_bytes_read();
        assert!(read.iter().zip(before).all(|(r, b)| *r == 2 * b));
        assert_eq!(session.steps_done(), 5);
        for (f, e) in losses(&mut session, 9).iter().zip(&whole[5..]) {
            assert!((f - e).abs() <= 1e-5 * e, "{ranks} ranks, seed {seed}: {f}, not {e}");
        }
    }
}

#[test]
fn equal_states_are_equal_files_and_the_last_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let mut session = session(folder.path(), &mesh(2), 1);
    let name = |n: u64| format!("step-{n:08}.safetensors");
    for n in 1..=4 {
        losses(&mut session, n);
        save(&session, &a, 2).unwrap();
        save(&session, &b, 0).unwrap();
    }
    let names = |folder: &Path| -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&a), [name(3), name(4)]);
    assert_eq!(names(&b), [1, 2, 3, 4].map(name));
    let bytes = |folder: &Path| std::fs::read(folder.join(name(4))).unwrap();
    assert_eq!(bytes(&a), bytes(&b));

    // Other files are neither taken for checkpoints nor touched; steps count, not names.
    let foreign = [".step-1.safetensors", "step-+7.safetensors", "step-9.txt", "step-.safetensors"];
    for name in foreign {
        std::fs::write(a.join(name), "x").unwrap();
    }
    std::fs::copy(a.join(name(4)), a.join("step-123456789.safetensors")).unwrap();
    assert_eq!(latest(&a).unwrap(), Some(a.join("step-123456789.safetensors")));
    assert_eq!(list(&a).unwrap().iter().map(|(n, _)| *n).collect::<Vec<_>>(), [3, 4, 123_456_789]);
    save(&session, &a, 1).unwrap();
    assert_eq!(list(&a).unwrap().len(), 1);
    assert!(foreign.iter().all(|name| a.join(name).exists()));
}

/// Writes a file of tensors that are all zero.
fn file(path: &Path, tensors: &BTreeMap<String, TensorType>, metadata: (&str, &str)) {
    let types = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let zeros = |name: &str| Tensor::zeros(tensors[name].clone()).map(|t| t.to_bytes());
    write(std::fs::File::create(path).unwrap(), &types, metadata, zeros).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.safetensors");
    let mut session = session(folder.path(), &mesh(2), 1);
    losses(&mut session, 1);
    let saved = save(&session, folder.path(), 0).unwrap();
    let good: BTreeMap<String, TensorType> = {
        let file = SafetensorsFile::open(&saved).unwrap();
        file.names().map(|n| (n.to_string(), file.tensor(n).unwrap().0.clone())).collect()
    };
    assert_eq!(good.keys().collect::<Vec<_>>(), ["step", "w", "w.m", "w.v"]);
    let state = |session: &Session, path: &Path| {
        std::fs::read(save(session, &path.with_extension("d"), 0).unwrap()).unwrap()
    };
    let before = state(&session, &path);
    let mut refused = |tensors: &BTreeMap<String, TensorType>, metadata| {
        file(&path, tensors, metadata);
        load(&mut session, &path).unwrap_err()
    };
    let step = ("step", "3");
    let mut other = good.clone();
    other.remove("w.m");
    let found = refused(&other, step);
    assert!(matches!(found, CheckpointError::Missing { ref name, .. } if name == "w.m"), "{found}");
    let mut other = good.clone();
    other.insert("b".into(), other["w"].clone());
    let found = refused(&other, step);
    assert!(matches!(found, CheckpointError::Unknown { ref name, .. } if name == "b"), "{found}");
    let mut other = good.clone();
    other.insert("w".into(), TensorType::new(planc_ir::DType::F16, [6, 5]));
    let found = refused(&other, step);
    assert!(matches!(found, CheckpointError::Type { ref name, .. } if name == "w"), "{found}");
    for metadata in [("steps", "3"), ("step", "-3"), ("step", "")] {
        let found = refused(&good, metadata);
        assert!(matches!(found, CheckpointError::NoStep { .. }), "{found}");
    }
    assert_eq!(state(&session, &path), before, "nothing was taken over");
    file(&path, &good, step);
    load(&mut session, &path).unwrap();
    assert_eq!(session.steps_done(), 3);
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = session(folder.path(), &mesh(2), 0);
    let saved = save(&session, folder.path(), 0).unwrap();
    let good = std::fs::read(&saved).unwrap();
    let path = folder.path().join("bad");
    let mut open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        load(&mut session, &path)
    };
    for length in (0..good.len()).step_by(7) {
        let found = open(&good[..length]).unwrap_err();
        assert!(
            matches!(found, CheckpointError::File(SafetensorsError::Format { .. })),
            "{length}: {found}"
        );
    }
    assert!(open(&[&good[..], b"x"].concat()).is_err());
    let with_header =
        |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    for header in [
        "{}",
        "[]",
        "",
        "{\"a\":1}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,18446744073709551615]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,0]}}",
        "{\"a\":{\"dtype\":\"F4\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"__metadata__\":{\"step\":\"1\"},\"w\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]}}",
    ] {
        assert!(open(&with_header(header)).is_err(), "{header}");
    }
    let deep = "[".repeat(100_000);
    assert!(open(&with_header(&deep)).is_err());
    assert!(open(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat()).is_err());
    // Whatever one byte of the header is, it is a checkpoint or an error.
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        for bits in [1, 0x10, 0x80] {
            let mut bytes = good.clone();
            bytes[at] ^= bits;
            let _ = open(&bytes);
        }
    }
    open(&good).unwrap();
}

/// A part of a weight that is of another type than the file's is refused by the file itself, too.
#[test]
fn a_file_is_a_source_of_weights() {
    use planc_runtime::Weights as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let t = numbers(crate::common::f32s([4, 3]), 1);
    let types = [("t", t.ty())].into();
    let contents = |_: &str| Ok::<_, WeightError>(t.to_bytes());
    write(std::fs::File::create(&path).unwrap(), &types, ("k", "v"), contents).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.metadata("k"), Some("v"));
    let whole = planc_runtime::region::whole(t.ty());
    let mut out = vec![0; 48];
    assert_eq!(file.read("t", &whole, &mut out).unwrap(), 48);
    assert_eq!(out, t.to_bytes());
    assert!(matches!(file.read("u", &whole, &mut out), Err(WeightError::Unknown)));
    let other = planc_runtime::region::whole(&crate::common::f32s([3, 4]));
    assert!(matches!(file.read("t", &other, &mut out), Err(WeightError::Type { .. })));
}

/// Columns and rows of a model whose checkpoint takes long enough to write to be interrupted.
const LARGE: u64 = 2000;

/// Where the child below writes; it is no test of its own.
const FOLDER: &str = "PLANC_TEST_CHECKPOINTS";

fn large_session(folder: &Path) -> Session {
    let graph = step(1, LARGE, LARGE, Some(0.5));
    let plan = plan(folder, &graph, &Strategy::replicated(&graph, mesh(1)));
    Session::load(&plan, &folder.join("model.onnx")).unwrap()
}

/// Saves the state after each of many steps, until it is killed.
#[test]
fn child_that_saves() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let mut session = large_session(&folder);
    for step in 1..10_000 {
        let inputs = [("x", LARGE), ("t", LARGE)].map(|(name, columns)| {
            let value = if name == "x" { 1.0 } else { f64::from(step) };
            let ty = crate::common::f32s([1, columns]);
            (name.to_string(), Tensor::from_f64(ty, |_| value).unwrap())
        });
        let inputs = BTreeMap::from(inputs);
        session.train_step(&[inputs.clone(), inputs.clone(), inputs], 0.01).unwrap();
        save(&session, &folder.join("states"), 2).unwrap();
    }
}

/// A run that is killed while it writes a checkpoint leaves the one before it whole.
#[test]
fn a_kill_while_saving_leaves_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let states = folder.path().join("states");
    let begun = |states: &Path| {
        let entries = std::fs::read_dir(states).into_iter().flatten().flatten();
        entries.filter(|e| e.file_name().to_string_lossy().ends_with(".tmp")).any(|e| {
            // More than the header, less than all.
            e.metadata().is_ok_and(|m| m.len() > 4096 && m.len() < 3 * LARGE * LARGE * 4)
        })
    };
    let (started, mut interrupted) = (Instant::now(), 0);
    let mut session = large_session(folder.path());
    let mut last = 0;
    while interrupted < 3 {
        assert!(started.elapsed() < Duration::from_secs(120), "no kill came while saving");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoints::child_that_saves"])
            .env(FOLDER, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while list(&states).unwrap().len() < 2 || !begun(&states) {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap(); // SIGKILL, where there are signals
        assert!(!child.wait().unwrap().success());
        // It may have finished the file between the look and the kill.
        interrupted += u32::from(begun(&states));
        let path = latest(&states).unwrap().unwrap();
        load(&mut session, &path).unwrap();
        assert!(session.steps_done() >= 1);
        // All columns are treated alike, so a file of mixed steps would show.
        let file = SafetensorsFile::open(&path).unwrap();
        for name in ["w", "w.m", "w.v"] {
            let (_, bytes) = file.tensor(name).unwrap();
            assert!(
                bytes.chunks_exact(4).all(|x| x == &bytes[..4]),
                "{name} in {}",
                path.display()
            );
        }
        last = last.max(session.steps_done());
    }
    // The next save clears away what was abandoned.
    save(&session, &states, 0).unwrap();
    assert!(!begun(&states));
    assert!(last >= 1);
}
