//! Parts of arrays, other axes, files by layer.

use std::fs;

use serde_json::json;
use tempfile::TempDir;
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;

use super::bed::{Written, ravel, unravel};
use crate::common::reference_of;

fn assert_held_alike(one: &Dump, other: &Dump, point: Point, layer: usize) {
    let site = Site { point, layer: Some(layer), pass: Some(0) };
    let (found, expected) = (super::rows::canonical(other, site), super::rows::canonical(one, site));
    assert_eq!(found, expected, "{site}");
}

/// Rearranges an array: `shape` is that of the new, `from` the place in the old.
fn rearranged(
    old: &(Vec<usize>, Vec<f32>),
    shape: &[usize],
    from: impl Fn(&[usize]) -> Vec<usize>,
) -> Vec<f32> {
    let all = 0..shape.iter().product();
    all.map(|flat| old.1[ravel(&from(&unravel(flat, shape)), &old.0)]).collect()
}

/// Query, key and value beside each other for each key-value head: `[T, Hkv, G + 2, D]`.
#[test]
fn a_qkv_projection_fused_by_head_is_split() {
    [true, false].into_iter().for_each(cut_by_head);
}

fn cut_by_head(names_axes: bool) {
    let dump = reference_of("tiny-llama3", "transformers-f32");
    let mut written = Written::of(&dump);
    let file = |tap: &str| format!("p0/l01/{tap}.npy");
    let [q, k, v] = ["q", "k", "v"].map(|tap| written.arrays.remove(&file(tap)).expect("it is there"));
    let ([tokens, heads, width], kv_heads) = (<[usize; 3]>::try_from(q.0.clone()).expect("three"), k.0[1]);
    let group = heads / kv_heads;
    assert!(group > 1, "heads are grouped");
    let shape = [tokens, kv_heads, group + 2, width];
    let fused = (0..shape.iter().product()).map(|flat| {
        let at = unravel(flat, &shape);
        let (old, head) = match at[2] {
            part if part < group => (&q, at[1] * group + part),
            part if part == group => (&k, at[1]),
            _ => (&v, at[1]),
        };
        old.1[ravel(&[at[0], head, at[3]], &old.0)]
    });
    // Stored flat: the row says how it is cut.
    written
        .arrays
        .insert("p0/l01/qkv.npy".into(), (vec![tokens, shape[1..].iter().product()], fused.collect()));
    written.edit_rows(|row| {
        let cut = match row["file"].as_str().expect("a file") {
            file if file == self::file_of("q") => Some((0, group)),
            file if file == self::file_of("k") => Some((group, group + 1)),
            file if file == self::file_of("v") => Some((group + 1, group + 2)),
            _ => None,
        };
        if let Some((start, end)) = cut {
            row["file"] = json!("p0/l01/qkv.npy");
            // Neighbouring axes are one where the tap has one, whether they are named or not.
            if names_axes {
                row["shape"] = json!([tokens, kv_heads, end - start, width]);
                row["axes"] = json!(["token", "kv_head", "group", "head_dim"]);
            }
            row["of"] =
                json!({"shape": shape, "start": [0, 0, start, 0], "end": [tokens, kv_heads, end, width]});
        }
    });
    let cut = written.open();
    for point in [Point::Q, Point::K, Point::V] {
        assert_held_alike(&dump, &cut, point, 1);
    }
}

fn file_of(tap: &str) -> String {
    format!("p0/l01/{tap}.npy")
}

/// Gate and up interleaved, `[T, F, 2]`, and an array whose tokens are last.
#[test]
fn interleaved_and_transposed_arrays_are_read() {
    let dump = reference_of("tiny-qwen3", "transformers-f32");
    let mut written = Written::of(&dump);
    let [gate, up] =
        ["ffn_gate", "ffn_up"].map(|tap| written.arrays.remove(&file_of(tap)).expect("it is there"));
    let [tokens, width] = <[usize; 2]>::try_from(gate.0.clone()).expect("two");
    let both = gate.1.iter().zip(&up.1).flat_map(|(gate, up)| [*gate, *up]).collect();
    written.arrays.insert("p0/l01/gate_up.npy".into(), (vec![tokens, 2 * width], both));
    let context = written.arrays.remove(&file_of("attn_context")).expect("it is there");
    let turned = [context.0[1], context.0[0]];
    let values = rearranged(&context, &turned, |at| vec![at[1], at[0]]);
    written.arrays.insert(file_of("attn_context"), (turned.to_vec(), values));
    written.edit_rows(|row| match row["file"].as_str().expect("a file") {
        file if [file_of("ffn_gate"), file_of("ffn_up")].contains(&file.to_owned()) => {
            let at = usize::from(file == file_of("ffn_up"));
            row["file"] = json!("p0/l01/gate_up.npy");
            row["shape"] = json!([tokens, width]);
            row["of"] =
                json!({"shape": [tokens, width, 2], "start": [0, 0, at], "end": [tokens, width, at + 1]});
        }
        file if file == file_of("attn_context") => {
            row["shape"] = json!(turned);
            row["axes"] = json!(["hidden", "token"]);
        }
        _ => {}
    });
    let cut = written.open();
    for point in [Point::FfnGate, Point::FfnUp, Point::AttnContext] {
        assert_held_alike(&dump, &cut, point, 1);
    }
}

/// A folder whose layers are files of their own.
#[test]
fn a_file_for_each_layer_holds_the_same() {
    let dump = reference_of("tiny-gpt2", "transformers-f32");
    let home = TempDir::new().expect("a temporary directory");
    let mut whole = Written::of(&dump);
    let part_of = |file: &str| {
        file.split('/').find(|part| part.starts_with('l') && part.len() == 3).unwrap_or("rest").to_owned()
    };
    let mut parts = std::collections::BTreeMap::<String, Written>::new();
    for (file, array) in std::mem::take(&mut whole.arrays) {
        let empty =
            || Written { manifest: json!({}), arrays: Default::default(), others: Default::default() };
        parts.entry(part_of(&file)).or_insert_with(empty).arrays.insert(file, array);
    }
    for (part, written) in &parts {
        fs::write(home.path().join(format!("{part}.safetensors")), written.bytes()).expect("it is written");
    }
    whole.edit_rows(|row| {
        let file = row["file"].as_str().expect("a file").to_owned();
        row["file"] = json!(format!("{}.safetensors#{}", part_of(&file), file.trim_end_matches(".npy")));
    });
    fs::write(home.path().join("manifest.json"), whole.manifest.to_string()).expect("it is written");
    let folder = Dump::open(home.path()).expect("it is sound");
    for site in folder.sites().filter(|site| site.point != Point::Generated) {
        assert_eq!(folder.read(site).expect("sound"), dump.read(site).expect("sound"), "{site}");
    }
    assert!(folder.sites().count() > 60);
    fs::remove_file(home.path().join("l01.safetensors")).expect("it was there");
    let refused = Dump::open(home.path()).expect_err("a layer is gone").to_string();
    assert!(refused.contains("l01.safetensors#p0/l01/"), "{refused}");
}
