//! The map of taps and layers on a terminal.

use xcheck::checkpoint::Point;
use xcheck::report::{maps, verdicts};
use xcheck::verdict::{Outcome, SiteResult};

use super::fixture::{
    doubtful, everything, failing, failing_candidate, inconclusive, measurement, outcome, passing, report,
    row, site, small,
};

fn good(layer: usize) -> SiteResult {
    row(site(Point::V, layer, 0), Some(small(1)), Some(small(1)))
}

fn bad(layer: usize) -> SiteResult {
    let far = || Some(measurement(&[0], 9.0, 0.5));
    row(site(Point::V, layer, 0), far(), far())
}

fn same(layer: usize) -> SiteResult {
    let same = || Some(measurement(&[0], 0.5, 0.5));
    row(site(Point::V, layer, 0), same(), same())
}

/// The characters of a tap, by layer.
fn cells(map: &str, tap: &str) -> String {
    let line = map.lines().find(|line| line.split_whitespace().next() == Some(tap)).expect("it has a line");
    line.trim_start()[tap.len()..].trim_start().to_owned()
}

fn drawn(outcome: Outcome) -> String {
    maps(&report([outcome]), true, false)
}

#[test]
fn each_kind_of_place_has_its_character() {
    let mut rows = vec![same(0), good(1), bad(3)];
    rows.extend([row(site(Point::Q, 2, 0), Some(small(1)), Some(small(1)))]);
    let map = drawn(outcome("a", rows));
    assert_eq!((cells(&map, "v").as_str(), cells(&map, "q").as_str()), ("=. x", "."), "{map}");
    assert_eq!(cells(&drawn(doubtful()), "ffn_out"), "?");
}

#[test]
fn the_worst_of_all_passes_is_shown() {
    let mut later = bad(0);
    later.site.pass = Some(7);
    assert_eq!(cells(&drawn(outcome("a", vec![good(0), later, good(1)])), "v"), "x.");
}

#[test]
fn more_layers_than_fit_are_folded_and_none_that_fails_is_hidden() {
    for layers in [1, 60, 77, 78, 79, 200, 1000] {
        for failing in [0, layers / 2, layers - 1] {
            let rows = (0..layers).map(|layer| if layer == failing { bad(layer) } else { same(layer) });
            let map = drawn(outcome("a", rows.collect()));
            assert!(map.lines().all(|line| line.chars().count() <= 80), "{map}");
            assert_eq!(cells(&map, "v").matches('x').count(), 1, "{layers}, {failing}: {map}");
        }
    }
    let none = drawn(outcome("a", (0..200).map(same).collect()));
    assert!(!cells(&none, "v").contains('x') && none.contains("layers per column"), "{none}");
}

#[test]
fn layers_have_their_own_numbers_above_their_columns() {
    let map = drawn(outcome("a", (20..42).map(good).collect()));
    let head = map.lines().find(|line| line.trim_start().starts_with("layer")).expect("a head");
    let first = map.lines().find(|line| line.trim_start().starts_with("v ")).and_then(|line| line.find('.'));
    assert_eq!(head.find("20"), first, "{map}");
    assert_eq!(cells(&map, "layer"), "20   25   30   35   40");
}

#[test]
fn the_first_failure_has_a_map_and_a_pass_only_where_it_is_asked_for() {
    let report = report([passing(), failing(), failing_candidate(), inconclusive()]);
    let titles = |all: bool| {
        let maps = maps(&report, all, false);
        maps.lines().filter_map(|line| line.strip_prefix("map of ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(titles(false), ["llama.cpp-q8_0-with-v-off"]);
    assert_eq!(titles(true).len(), 4);
}

#[test]
fn colour_changes_no_character() {
    let report = report([failing()]);
    let (plain, coloured) = (maps(&report, true, false), maps(&report, true, true));
    assert!(coloured.contains("\u{1b}[38;5;") && !plain.contains('\u{1b}'));
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
}

#[test]
fn verdict_lines_alone_are_a_line_for_each_reference() {
    let report = everything();
    let lines = verdicts(&report, false);
    assert_eq!(lines.lines().count(), report.results.len(), "{lines}");
    assert!(!lines.contains("note:") && lines.contains("FAIL"));
}
