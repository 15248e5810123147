//! What is asked for, and what is kept: no byte that is not needed, and none twice.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use xcheck::checkpoint::{Point, Site};
use xcheck::disk_cache::DiskCache;
use xcheck::dump::Dump;
use xcheck::engine::run_layer;
use xcheck::format::{FileBytes, Safetensors};
use xcheck::model::ModelFiles;
use xcheck::numerics::F32;
use xcheck::remote::{RemoteAccess, RemoteFolder, Url};
use xcheck::tap::Probe;
use xcheck::tensor::Tensor;

use super::machine::{BLOCK, Machine, shipped};
use super::server::{Faults, Given};

const MODEL: &str = "tiny-llama2/hf";
const WEIGHTS: &str = "tiny-llama2/hf/model.safetensors";
const DUMP: &str = "tiny-llama2/dumps/transformers-f32.safetensors";

fn remote(machine: &Machine, path: &str) -> (RemoteFolder, Url) {
    let url = Url::parse(&machine.url(path)).expect("a URL");
    let settings = RemoteAccess { kept: DiskCache::in_folder(machine.cache(), 1 << 30), token: None };
    (RemoteFolder::new(&url, &settings).expect("there is network code"), url)
}

/// The bytes of a file that were given, merged.
fn given_of(given: &[Given], path: &str) -> Vec<Range<usize>> {
    let mut ranges: Vec<_> =
        given.iter().filter(|given| given.path == path).map(|given| given.range.clone()).collect();
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// Where the tensors of a file stand whose name begins so, widened to whole blocks.
fn places(path: &str, is_one: impl Fn(&str) -> bool) -> Vec<Range<usize>> {
    let source = FileBytes::open(&shipped(path)).expect("it ships");
    let start = source.data.as_ptr() as usize;
    let file = Safetensors::read(&source).expect("sound");
    let tensors = file.tensors.iter().filter(|(name, _)| is_one(name));
    tensors
        .map(|(_, tensor)| {
            let first = tensor.data.as_ptr() as usize - start;
            first / BLOCK * BLOCK..(first + tensor.data.len()).next_multiple_of(BLOCK)
        })
        .collect()
}

#[test]
fn teacher_forcing_one_layer_reads_the_weights_of_that_layer_and_no_others() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (place, url) = remote(&machine, MODEL);
    let files = ModelFiles::open_in(&place, Path::new(url.shown())).expect("a model");
    let loaded = files.load().expect("sound");
    let sizes = loaded.model.dimensions();
    machine.server.given();

    let x = Tensor::new(&[2, sizes.hidden_size], vec![0.5; 2 * sizes.hidden_size]);
    let (mut state, mut nobody) = (loaded.model.layer_state(2), ());
    let mut probe = Probe::new(&mut nobody, 0);
    let out = run_layer(&*loaded.model, &F32, 2, &x, &mut state, &mut probe).expect("it runs");

    let read = given_of(&machine.server.given(), WEIGHTS);
    let layer = places(WEIGHTS, |name| name.starts_with("model.layers.2."));
    let bytes: usize = read.iter().map(Range::len).sum();
    let needed: usize = layer.iter().map(Range::len).sum();
    let all = machine.server.file(WEIGHTS).len();
    assert!(bytes <= needed && bytes < all / 3, "{bytes} of {needed}, {all} in all");
    for range in &read {
        let inside = |at: usize| layer.iter().any(|place| place.contains(&at));
        assert!(range.clone().step_by(BLOCK).all(inside), "{range:?} is not of the layer: {layer:?}");
    }

    // The same as of the file that is here.
    let here = ModelFiles::open(&shipped(MODEL)).expect("it ships").load().expect("sound");
    let mut state = here.model.layer_state(2);
    let mut probe = Probe::new(&mut nobody, 0);
    assert_eq!(run_layer(&*here.model, &F32, 2, &x, &mut state, &mut probe).expect("it runs"), out);
}

#[test]
fn a_long_header_comes_in_growing_steps_and_nothing_twice() {
    // A vocabulary of 2 MB before the tensors, as GGUF files have.
    let machine = Machine::new(&["tiny-llama2"]);
    let header = format!(r#"{{"__metadata__":{{"long":"{}"}}}}"#, "x".repeat(2 << 20));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    machine.server.put("long.safetensors", file);
    let (place, _) = remote(&machine, "long.safetensors");
    let source = place.open().expect("it is there");
    for at in (0..source.data.len()).step_by(1000) {
        assert!(source.data.at(at..at + 1)[0] < 128); // as a reader of many small fields
    }
    let given = given_of(&machine.server.given(), "long.safetensors");
    assert!(given.len() < 12, "{given:?}");
    assert!(given.windows(2).all(|two| two[0].end == two[1].start), "{given:?}");
    assert_eq!(Safetensors::read(&source).expect("sound").metadata["long"].len(), 2 << 20);
}

#[test]
fn one_array_of_a_dump_reads_its_header_and_that_array() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (place, _) = remote(&machine, DUMP);
    let dump = Dump::from_source(place.open().expect("it is there")).expect("a dump");
    let opened = machine.server.bytes();
    let site = Site { point: Point::BlockOut, layer: Some(1), pass: Some(0) };
    let values = dump.read(site).expect("readable").expect("held");
    let here = Dump::open(&shipped(DUMP)).expect("it ships").read(site).expect("readable").expect("held");
    assert_eq!(values, here);
    let read = machine.server.bytes();
    let all = machine.server.file(DUMP).len();
    assert!(read <= 4 * values.data.len() + 2 * BLOCK, "{read} bytes for {} values", values.data.len());
    assert!(opened + read < all / 2, "{opened} and {read} of {all}");
}

#[test]
fn what_is_here_is_not_asked_for_again() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let first = machine.report(&model, &dump, &[]);
    let (given, asked) = (machine.server.given(), |given: &[Given]| given.len());
    assert!(given.iter().map(|given| given.range.len()).sum::<usize>() > 3_000_000);
    let again = machine.report(&model, &dump, &[]);
    let second = machine.server.given();
    assert_eq!(first["references"], again["references"]);
    // Each file is asked whether it is still the same, and begins to come with the answer.
    assert!(second.iter().all(|given| given.range.start == 0 && given.range.len() <= BLOCK), "{second:?}");
    assert!(asked(&second) <= 8, "{second:?}");
}

#[test]
fn without_a_cache_nothing_is_left() {
    let machine = Machine::new(&["tiny-llama2"]).with("XCHECK_CACHE", "off");
    let temporary = machine.folder.path().join("tmp");
    fs::create_dir(&temporary).expect("made");
    let machine = machine.with("TMPDIR", &temporary.display().to_string());
    machine.succeeds(&["inspect", &machine.url(WEIGHTS)]);
    assert_eq!(fs::read_dir(&temporary).expect("listed").count(), 0);
    assert!(!machine.cache().exists());
}

#[cfg(unix)]
#[test]
fn a_killed_download_resumes_and_loses_nothing_that_had_come() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { hang_after: Some(1_500_000), ..Faults::default() });
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let mut child = machine.start(&["run", "--model", &model, "--reference", &dump, "--no-report"]);
    let started = Instant::now();
    while machine.server.sent() < 1_500_000 {
        assert!(started.elapsed() < Duration::from_secs(60), "{} came", machine.server.sent());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    child.kill().expect("it runs"); // SIGKILL
    child.wait().expect("it ends");
    machine.server.misbehave(Faults::default());
    machine.server.given();

    let report = machine.report(&model, &dump, &[]);
    assert_eq!(report["verdict"], "pass", "{report}");
    let given = machine.server.bytes();
    let all = machine.server.file(WEIGHTS).len() + machine.server.file(DUMP).len();
    // Up to eight requests were on their way, each within a block.
    assert!(given < all - 1_500_000 + 16 * BLOCK, "{given} of {all} were asked for again");
}

#[test]
fn a_block_that_was_damaged_on_the_disk_is_brought_again() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let first = machine.report(&model, &dump, &[]);
    let large = |path: &&std::path::PathBuf| {
        path.file_name().is_some_and(|name| name == "data")
            && fs::metadata(path).expect("there").len() as usize == machine.server.file(WEIGHTS).len()
    };
    let files = machine.files();
    let data = files.iter().find(large).expect("the weights are kept");
    let mut bytes = fs::read(data).expect("readable");
    bytes[2_000_000] ^= 0x40;
    fs::write(data, bytes).expect("written");
    machine.server.given();
    let again = machine.report(&model, &dump, &[]);
    assert_eq!(first["references"], again["references"]);
    let read = given_of(&machine.server.given(), WEIGHTS);
    assert!(read.iter().any(|range| range.contains(&2_000_000)), "{read:?}");
}

#[test]
fn connections_that_break_and_servers_that_are_busy_are_asked_again() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    machine.server.misbehave(Faults { cut: Some(3 * BLOCK), refuse: Some((2, 503)), ..Faults::default() });
    assert_eq!(machine.report(&model, &dump, &[])["verdict"], "pass");
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { refuse: Some((3, 429)), ..Faults::default() });
    machine.succeeds(&["inspect", &machine.url(WEIGHTS)]);
}

#[test]
fn several_processes_may_read_the_same_at_once() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let run = ["run", "--model", &model, "--reference", &dump, "--no-report"];
    let mut children: Vec<_> = (0..4).map(|_| machine.start(&run)).collect();
    assert!(children.iter_mut().all(|child| child.wait().expect("it ends").code() == Some(0)));
    machine.server.given();
    assert_eq!(machine.report(&model, &dump, &[])["verdict"], "pass");
    assert!(machine.server.given().iter().all(|given| given.range.start == 0), "all of it is kept");
}

#[test]
fn two_presigned_urls_of_one_object_share_their_cached_content() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { signature: Some("X-Sig="), ..Faults::default() });
    let signed = |signature: &str| format!("{}?X-Sig={signature}&X-Expires=1", machine.url(WEIGHTS));
    let model = |signature: &str| format!("{}?X-Sig={signature}", machine.url(MODEL));
    machine.succeeds(&["inspect", &signed("first")]);
    machine.succeeds(&[
        "dump",
        "--model",
        &model("first"),
        "--tokens",
        "1,2",
        "--decode",
        "0",
        "--out",
        "one",
    ]);
    machine.server.given();
    machine.succeeds(&[
        "dump",
        "--model",
        &model("second"),
        "--tokens",
        "1,2",
        "--decode",
        "0",
        "--out",
        "two",
    ]);
    assert!(machine.server.given().iter().all(|given| given.range.start == 0));
}

#[test]
fn room_is_made_by_what_was_not_used_for_longest() {
    let machine = Machine::new(&["tiny-llama2"]).with("XCHECK_CACHE_LIMIT", "3.5MB");
    let run = |tag: &str| {
        let model = machine.url(&format!("tiny-llama2/tiny-llama2-{tag}.gguf"));
        let out = format!("{tag}-{}", machine.files().len());
        machine.succeeds(&["dump", "--model", &model, "--tokens", "1,2", "--decode", "0", "--out", &out]);
        machine.server.bytes()
    };
    assert!(run("q8_0") > 800_000);
    std::thread::sleep(Duration::from_millis(20));
    assert!(run("f16") > 1_500_000);
    assert!(run("q8_0") <= 3 * BLOCK, "it was kept");
    std::thread::sleep(Duration::from_millis(20));
    let f32 = run("f32");
    assert!(f32 > 2_500_000, "{f32}: it takes the place of both");
    assert!(run("f16") > 1_500_000, "it had to go");
}
