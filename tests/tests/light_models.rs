//! The classic convolutional networks of the ONNX model zoo (without weights) are planned.

use planc::search::SearchOptions;
use planc_tests::{cost_model, plan, shared};

#[test]
fn every_light_model_is_planned() {
    let Some(shared) = shared() else {
        eprintln!("SKIPPED: ../shared/models is absent");
        return;
    };
    let mut folders: Vec<_> = std::fs::read_dir(shared.join("wild"))
        .expect("wild")
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("light-")))
        .collect();
    folders.sort();
    assert!(folders.len() >= 9, "found {} light models", folders.len());
    for folder in folders {
        let name = folder.file_name().expect("name").to_string_lossy().into_owned();
        let path = folder.join(format!("{name}.onnx"));
        for ranks in [1, 4] {
            let cost = cost_model("H100", ranks);
            let (_, compiled) = plan(&path, &[], &cost, &SearchOptions::default());
            let p = &compiled.plan.predicted;
            eprintln!("{name:<24} {ranks} devices: {:.1} µs", p.total_us);
            assert!(p.total_us > 0.0);
            assert!(
                compiled.plan.baselines.iter().all(|b| !b.fits || b.total_us >= p.total_us * 0.999),
                "{name}: a baseline is better"
            );
        }
    }
}
