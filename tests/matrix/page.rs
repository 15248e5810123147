//! The tables hold what names say, and names open nothing.

use std::collections::BTreeSet;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::bed::{Bed, CHECK, each};
use crate::report::page::held;

fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).expect("it starts");
    rest.split_once(end).expect("it ends").0
}

#[test]
fn names_from_values_stay_below_the_folder() {
    let bed = Bed::new();
    let hostile =
        ["../../up", "..", "/etc/passwd", "a b", "a_b", "A_B", "データ", "-x", ".lock", "x\\\\y", "con:"];
    let long = "x".repeat(300);
    let values: Vec<String> = hostile.iter().map(|value| format!("\"{value}\"")).collect();
    let text = format!("{CHECK}\n[axes]\ndump = [{}, \"{long}\"]", values.join(", "))
        .replace("\"{dump}\"", "\"gone/{dump}\"");
    let (finished, matrix) = bed.matrix(&text, &["--jobs", "2"]);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    let names: Vec<&str> = each(&matrix, "name").iter().map(|name| name.as_str().expect("a name")).collect();
    for name in &names {
        assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-+".contains(&c)), "{name}");
        assert!(!name.starts_with(['.', '-']) && name.len() < 150, "{name}");
        assert!(bed.path("out/cells").join(name).join("report.json").is_file(), "{name}");
    }
    let own: BTreeSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
    assert_eq!(own.len(), names.len(), "{names:?}");
    let there = |folder: &str| fs::read_dir(bed.path(folder)).expect("it is there").count();
    assert_eq!((there("out/cells"), there(".")), (names.len(), 4)); // two dumps, cells.toml, out
}

#[test]
fn a_page_runs_nothing_but_its_own_script_and_opens_nothing() {
    let bed = Bed::new();
    let hostile = "</script><script>alert(1)</script><!--";
    let text = format!(
        "{CHECK}\n[axes]\ndump = [\"{hostile}\", \"](javascript:alert(1))|`\", \"right.safetensors\"]"
    );
    let (finished, matrix) = bed.matrix(&text, &[]);
    assert_eq!(finished.code, 2);
    let page = fs::read_to_string(bed.path("out/matrix.html")).expect("it is there");
    let policy = between(&page, r#"http-equiv="Content-Security-Policy" content=""#, "\"");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    let script = between(page.rsplit_once("<script>").expect("it has one").1, "", "</script>");
    for (name, content) in [("script", script), ("style", between(&page, "<style>", "</style>"))] {
        let hash = STANDARD.encode(Sha256::digest(content));
        assert!(policy.contains(&format!("{name}-src 'sha256-{hash}'")), "{name}: {policy}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("<!--") && !page.contains("https://"));
    assert!(page.matches("http://").all(|_| page.contains("www.w3.org/2000/svg")));
    let held = held(&page);
    assert_eq!(
        (&held["cells"][0]["values"]["dump"], &held["verdict"]),
        (&hostile.into(), &matrix["verdict"])
    );
    for cell in held["cells"].as_array().expect("a list") {
        let report = cell["report"].as_str().expect("an error has a report, too");
        assert!(bed.path("out").join(report).join("report.html").is_file(), "{report}");
    }
    let words = fs::read_to_string(bed.path("out/matrix.md")).expect("it is there");
    assert!(words.contains(r"| \](javascript:alert(1))\|\` |"), "{words}");
    assert!(!finished.stdout.contains('\x1b'));
}
