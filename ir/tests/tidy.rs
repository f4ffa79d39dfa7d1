//! House rules that the compiler does not check, over all files of the workspace.
//!
//! A rule is a function from a file (or from a set of them) to the faults it finds; each has a test
//! that applies it to the workspace and one that shows it a fault.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file may have this many lines.
const MAX_LINES: usize = 600;

/// Files that may be longer, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// All files below `tests/` folders that are not source code may take this many bytes together.
const MAX_TEST_DATA_BYTES: u64 = 12_000_000;

/// The libraries each crate may use of the workspace. (For its tests it may use any.)
const MAY_USE: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("cost-model", &["planc-ir"]),
    ("codegen", &["planc-ir"]),
    ("runtime", &["planc-ir"]),
    ("models", &["planc-ir"]),
];

/// Libraries that only one crate may use.
const ONLY_IN: &[(&str, &str)] = &[
    ("egg", "compiler"),
    ("good_lp", "compiler"),
    ("highs", "compiler"),
    ("highs-sys", "compiler"),
    ("cudarc", "runtime"),
    ("prost", "ir"),
];

/// Words that mark unfinished work, written so that this file does not hold them.
const UNFINISHED: &[&str] = &[
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("dbg", "!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X:"),
];

/// Folders of one machine, which nothing may depend on.
const MACHINE_PATHS: &[&str] = &[
    concat!("/tm", "p/"),
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Use", "rs/"),
];

/// A text file: its path relative to the workspace, with `/`, and its contents.
struct Text {
    path: String,
    text: String,
}

impl Text {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_string(), text: text.to_string() }
    }

    fn is(&self, wanted: &str) -> bool {
        extension(&self.path) == wanted
    }

    /// The faults of single lines, each with its place.
    fn lines(&self, fault: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let numbered = self.text.lines().enumerate();
        numbered
            .filter_map(|(i, line)| Some(format!("{}:{}: {}", self.path, i + 1, fault(line)?)))
            .collect()
    }
}

fn extension(path: &str) -> &str {
    Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or_default()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file of the workspace in order of path, build outputs and the optional model folder left out.
fn files() -> Vec<String> {
    fn walk(folder: &Path, prefix: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("the workspace is readable") {
            let entry = entry.expect("the workspace is readable");
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let kind = entry.file_type().expect("the workspace is readable");
            let path = format!("{prefix}{name}");
            if kind.is_dir() && !["target", ".git", "shared"].contains(&name.as_str()) {
                walk(&entry.path(), &format!("{path}/"), found);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    found
}

/// The files that people write.
fn texts() -> Vec<Text> {
    let written = |p: &String| {
        ["rs", "md", "toml", "sh", "yml", "planc"].contains(&extension(p)) || p.starts_with(".ci/")
    };
    files()
        .into_iter()
        .filter(written)
        .map(|path| Text {
            text: fs::read_to_string(root().join(&path)).expect("text files are UTF-8"),
            path,
        })
        .collect()
}

#[track_caller]
fn assert_tidy(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn sources(rule: impl Fn(&Text) -> Vec<String>) -> Vec<String> {
    texts().iter().filter(|t| t.is("rs")).flat_map(rule).collect()
}

fn too_long(t: &Text) -> Vec<String> {
    let lines = t.text.lines().count();
    let allowed = LONG_FILES.iter().any(|(path, _)| *path == t.path);
    match (lines > MAX_LINES, allowed) {
        (true, false) => vec![format!("{}: {lines} lines; split it (limit {MAX_LINES})", t.path)],
        (false, true) => vec![format!("{}: short again; take it off the list", t.path)],
        _ => vec![],
    }
}

#[test]
fn files_are_short() {
    assert_tidy(&sources(too_long));
    assert_eq!(too_long(&Text::new("a.rs", &"x\n".repeat(MAX_LINES + 1))).len(), 1);
    assert_eq!(too_long(&Text::new("a.rs", &"x\n".repeat(MAX_LINES))).len(), 0);
}

fn no_module_doc(t: &Text) -> Vec<String> {
    let starts = t.text.lines().next().is_some_and(|l| l.starts_with("//! ") && l.len() > 8);
    if starts { vec![] } else { vec![format!("{}: start with a module doc (`//! …`)", t.path)] }
}

#[test]
fn files_say_what_they_are() {
    assert_tidy(&sources(no_module_doc));
    assert_eq!(no_module_doc(&Text::new("a.rs", "use std;\n//! Late.\n")).len(), 1);
    assert_eq!(no_module_doc(&Text::new("a.rs", "")).len(), 1);
}

fn unfinished(t: &Text) -> Vec<String> {
    t.lines(|line| {
        let word = UNFINISHED.iter().find(|w| line.contains(**w))?;
        Some(format!("`{word}`: finish it, or return a typed error"))
    })
}

#[test]
fn nothing_is_unfinished() {
    assert_tidy(&sources(unfinished));
    for word in UNFINISHED {
        assert_eq!(unfinished(&Text::new("a.rs", &format!("fine\n  {word}\n"))).len(), 1, "{word}");
    }
}

fn untidy_space(t: &Text) -> Vec<String> {
    let mut faults = t.lines(|line| {
        (line != line.trim_end()).then(|| "space at the end of the line".to_string())
    });
    if t.text.contains('\r') {
        faults.push(format!("{}: ends lines with a carriage return", t.path));
    }
    if !t.text.is_empty() && (!t.text.ends_with('\n') || t.text.ends_with("\n\n")) {
        faults.push(format!("{}: end with exactly one line break", t.path));
    }
    faults
}

#[test]
fn no_space_at_the_end() {
    assert_tidy(&texts().iter().flat_map(untidy_space).collect::<Vec<_>>());
    for bad in ["a \n", "a\t\nb\n", "a", "a\n\n", "a\r\n"] {
        assert_eq!(untidy_space(&Text::new("a.rs", bad)).len(), 1, "{bad:?}");
    }
}

fn machine_path(t: &Text) -> Vec<String> {
    t.lines(|line| {
        let path = MACHINE_PATHS.iter().find(|p| line.contains(**p))?;
        Some(format!("`{path}` is a folder of one machine"))
    })
}

#[test]
fn no_paths_of_one_machine() {
    assert_tidy(&texts().iter().flat_map(machine_path).collect::<Vec<_>>());
    for path in MACHINE_PATHS {
        assert_eq!(machine_path(&Text::new("a.md", &format!("see {path}x\n"))).len(), 1);
    }
}

/// The names in one section of a Cargo.toml.
fn dependencies<'a>(manifest: &'a str, section: &str) -> BTreeSet<&'a str> {
    let header = format!("[{section}]");
    let lines = manifest.lines().skip_while(|l| *l != header).skip(1);
    lines
        .take_while(|l| !l.starts_with('['))
        .filter_map(|l| l.split(['.', '=', ' ']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect()
}

fn forbidden_dependencies(manifest: &Text) -> Vec<String> {
    let Some(krate) = manifest.path.strip_suffix("/Cargo.toml") else { return vec![] };
    let mut faults = Vec::new();
    let uses = dependencies(&manifest.text, "dependencies");
    if let Some((_, may)) = MAY_USE.iter().find(|(name, _)| *name == krate) {
        let ours = uses.iter().filter(|u| **u == "planc" || u.starts_with("planc-"));
        for other in ours.filter(|u| !may.contains(u)) {
            faults.push(format!("{krate} must not use {other}"));
        }
    }
    for (library, only) in ONLY_IN.iter().filter(|(l, only)| *only != krate && uses.contains(l)) {
        faults.push(format!("only {only} may use {library}, not {krate}"));
    }
    if !manifest.text.contains("[lints]\nworkspace = true\n") {
        faults.push(format!("{krate} does not take the workspace's lints"));
    }
    faults
}

#[test]
fn crates_use_only_what_they_may() {
    let manifests: Vec<Text> =
        texts().into_iter().filter(|t| t.path.ends_with("/Cargo.toml")).collect();
    assert!(manifests.len() >= MAY_USE.len());
    assert_tidy(&manifests.iter().flat_map(forbidden_dependencies).collect::<Vec<_>>());
    let bad =
        "[lints]\nworkspace = true\n\n[dependencies]\n# why\nplanc.workspace = true\negg = \"1\"\n";
    assert_eq!(
        forbidden_dependencies(&Text::new("codegen/Cargo.toml", bad)),
        ["codegen must not use planc", "only compiler may use egg, not codegen"]
    );
    assert_eq!(forbidden_dependencies(&Text::new("tests/Cargo.toml", "[dependencies]\n")).len(), 1);
}

/// Source code outside `ir/src/onnx` that names the protobuf library.
fn protobuf_elsewhere(t: &Text) -> Vec<String> {
    if t.path.starts_with("ir/src/onnx/") || t.path.contains("tests/") {
        return vec![];
    }
    t.lines(|line| {
        let named =
            line.contains(concat!("prost", "::")) || line.contains(concat!("proto", "buf::"));
        named.then(|| "protobuf is seen only in ir/src/onnx".to_string())
    })
}

#[test]
fn protobuf_stays_in_its_place() {
    assert_tidy(&sources(protobuf_elsewhere));
    let line = concat!("use prost", "::Message;\n");
    assert_eq!(protobuf_elsewhere(&Text::new("models/src/lib.rs", line)).len(), 1);
    assert_eq!(protobuf_elsewhere(&Text::new("ir/src/onnx/wire.rs", line)).len(), 0);
}

#[test]
fn test_data_is_small() {
    let data = files()
        .into_iter()
        .filter(|p| (p.starts_with("tests/") || p.contains("/tests/")) && extension(p) != "rs");
    let bytes: u64 =
        data.map(|p| fs::metadata(root().join(p)).expect("was just listed").len()).sum();
    assert!(bytes <= MAX_TEST_DATA_BYTES, "test data takes {bytes} bytes");
}

/// Relative links of a Markdown file whose target does not exist.
fn broken_links(t: &Text, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let folder = Path::new(&t.path).parent().unwrap_or(Path::new(""));
    t.lines(|line| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let broken = targets
            .filter_map(|target| target.split('#').next())
            .find(|p| !p.is_empty() && !p.contains(':') && !exists(&folder.join(p)))?;
        Some(format!("`{broken}` does not exist"))
    })
}

#[test]
fn links_lead_somewhere() {
    let exists = |p: &Path| root().join(p).exists();
    let documents = texts().into_iter().filter(|t| t.is("md"));
    assert_tidy(&documents.flat_map(|t| broken_links(&t, exists)).collect::<Vec<_>>());
    let text = "[a](https://a.example) [b](#here)\n[c](../x.md#there) and [d](y.md)\n";
    let only_x = |p: &Path| p == Path::new("docs/../x.md");
    assert_eq!(
        broken_links(&Text::new("docs/a.md", text), only_x),
        ["docs/a.md:2: `y.md` does not exist"]
    );
}
