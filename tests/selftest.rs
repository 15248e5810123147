//! The judge finds what is planted, as often as was promised; and `xcheck selftest` can fail.

use crate::common;
use std::fs;
use std::sync::Arc;

use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::catalogue::{OperationChange, Supposition};
use xcheck::numerics::Transformers;
use xcheck::selftest::{CorrectDump, InjectedFault, Judged, SelfTestJob, TestModel};

#[test]
fn what_ships_finds_what_was_promised_and_nothing_else() {
    let (code, document) = Terminal::new().json(&["selftest"]);
    let (all, remarks) = (&document["all"], &document["remarks"]);
    assert_eq!((code, document["verdict"].as_str()), (0, Some("pass")), "{document:#}");
    assert_eq!(all["misnamed"].as_u64(), Some(0), "{remarks:#}");
    assert!(all["detected"].as_u64() > Some(190), "{all}");
    let twins = document["twins"].as_object().expect("an object");
    let alarms: u64 = twins.values().map(|twin| twin["false_alarms"].as_u64().expect("a count")).sum();
    assert_eq!(alarms, 0, "{remarks:#}");
    assert!(twins.values().all(|twin| twin["judged"].as_u64() > Some(10)), "{twins:?}");
    let judged: u64 = twins.values().map(|twin| twin["judged"].as_u64().expect("a count")).sum();
    let [detected, planted, located, named] =
        ["detected", "planted", "located", "named"].map(|key| &all[key]);
    let told = format!(
        "{detected} of {planted} faults detected, {located} located, {named} named, {alarms} of {judged} correct engines fail"
    );
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("it is there");
    assert!(readme.contains(&told), "the README does not say: {told}");
}

/// One thread is enough, and any number finds the same.
#[test]
fn less_than_was_promised_fails() {
    let terminal = Terminal::new();
    let one = ["selftest", "--model", "tiny-llama3-f32", "--arithmetic", "f32", "--quick"];
    let figures = terminal.path().join("figures.toml").display().to_string();
    let alone = terminal.json(&[&one[..], &["--write", &figures, "--threads", "1"]].concat());
    let among = terminal.json(&[&one[..], &["--figures", &figures, "--threads", "3"]].concat());
    assert_eq!((alone.0, among.0), (0, 0), "{:#}", among.1);
    assert_eq!(alone.1["changes"], among.1["changes"]);
    let written: toml::Table = fs::read_to_string(&figures).expect("written").parse().expect("TOML");
    let mut raised = written.clone();
    for (section, of, what) in [("changes", "rope_theta", "located"), ("twins", "stored in f16", "passed")] {
        let figure = &mut raised[section][of][what];
        *figure = (figure.as_integer().expect("a number") + 1).into();
    }
    raised["twins"]["as it is"]["judged"] = 9.into();
    fs::write(&figures, raised.to_string()).expect("written");
    let (code, document) = terminal.json(&[&one[..], &["--figures", &figures]].concat());
    let broken = document["broken"].as_array().expect("a list");
    assert_eq!((code, broken.len()), (1, 3), "{document:#}");
    let says = |of: &str, what: &str| {
        let said = broken.iter().filter_map(|said| said.as_str());
        said.filter(|said| said.starts_with(of) && said.contains(what)).count()
    };
    let told = [("rope_theta", "located"), ("stored in f16", "passed"), ("as it is", "1 judged, expected 9")];
    told.into_iter().for_each(|(of, what)| assert_eq!(says(of, what), 1, "{of}: {broken:?}"));
    fs::write(&figures, "[changes.rope_theta]\nfound = 3\n[twins]\n").expect("written");
    terminal.run(&[&one[..], &["--figures", &figures]].concat()).refused(&["figures.toml", "planted"]);
    let document: (i32, Value) = terminal.json(&[&one[..], &["--arithmetic", "none"]].concat());
    assert_eq!(document.0, 2);
}

fn bed() -> TestModel {
    let model = common::variant("tiny-llama3-f32").load().expect("it loads").model;
    TestModel::new("tiny-llama3-f32", Arc::from(model), "f32")
}

#[test]
fn what_is_right_and_fails_is_a_false_alarm() {
    // An engine that is said to compute in f32, and does not.
    let mut bed = bed();
    bed.engine = Box::new(Transformers::Bf16);
    let Some(Judged::Twin(_, found, remark)) =
        SelfTestJob::Twin(&bed, "as it is", CorrectDump::Same).judged().expect("it runs")
    else {
        panic!("a twin")
    };
    assert_eq!((found.judged, found.passed, found.false_alarms), (1, 0, 1), "{remark:?}");
}

#[test]
fn a_change_without_an_effect_is_neither_detected_nor_missed() {
    for (typed, has_effect) in [("mask_window=4096", false), ("mask_window=3", true)] {
        let change = OperationChange::named(typed).expect("it is known").remove(0);
        let plant = InjectedFault { supposed: Supposition::everywhere(change.clone()), change };
        let Some(Judged::Change(_, count, remark)) =
            SelfTestJob::Change(&bed(), plant).judged().expect("it runs")
        else {
            panic!("a change")
        };
        let wanted = if has_effect { (1, 1, 1, 0) } else { (0, 0, 0, 1) };
        let found = (count.planted, count.detected, count.located, count.no_effect);
        assert_eq!(found, wanted, "{typed}: {remark:?}");
    }
}
