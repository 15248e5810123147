//! The structure that Jenkins' schemas allow: jenkins-junit.xsd, and junit-10.xsd of its xunit plugin.

use xcheck::report::junit;

use super::fixture::{doubtful, everything, failing_candidate, report};

/// What both schemas allow: an element, what it may stand in, its attributes; those marked * must be there.
const ALLOWED: [(&str, &str, &[&str]); 6] = [
    ("testsuites", "", &["name", "time", "tests", "failures", "errors"]),
    (
        "testsuite",
        "testsuites",
        &[
            "*name",
            "*tests",
            "*failures",
            "*errors",
            "skipped",
            "time",
            "timestamp",
            "hostname",
            "id",
            "package",
        ],
    ),
    ("testcase", "testsuite", &["*name", "time", "classname"]),
    ("skipped", "testcase", &[]),
    ("error", "testcase", &["type", "message"]),
    ("failure", "testcase", &["type", "message"]),
];

/// An element, what it stands in, and its attributes.
type Element = (String, String, Vec<(String, String)>);

/// The elements in order. Text and values hold no `<` and no `>`.
fn elements(xml: &str) -> Vec<Element> {
    let (mut open, mut found): (Vec<String>, Vec<Element>) = (Vec::new(), Vec::new());
    for tag in xml.split('<').skip(2).map(|rest| rest.split('>').next().expect("a tag ends")) {
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "elements are nested");
            continue;
        }
        let name = tag.split([' ', '/']).next().expect("a tag has a name").to_owned();
        let attributes = tag[name.len()..].trim_end_matches('/').split("\" ").filter_map(|attribute| {
            let (key, value) = attribute.trim().split_once("=\"")?;
            Some((key.to_owned(), value.trim_end_matches('"').to_owned()))
        });
        found.push((name.clone(), open.last().cloned().unwrap_or_default(), attributes.collect()));
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "every element ends");
    found
}

#[test]
fn elements_and_attributes_are_those_that_jenkins_knows() {
    for report in [everything(), report([]), report([failing_candidate(), doubtful()])] {
        for (name, parent, attributes) in elements(&junit(&report)) {
            let row = ALLOWED.iter().find(|(known, ..)| *known == name);
            let (_, inside, allowed) = row.unwrap_or_else(|| panic!("<{name}> is not known"));
            assert_eq!(parent, *inside, "<{name}>");
            let keys: Vec<&str> = attributes.iter().map(|(key, _)| key.as_str()).collect();
            let is_allowed = |key: &&str| allowed.iter().any(|known| known.trim_start_matches('*') == *key);
            assert!(keys.iter().all(is_allowed), "<{name}> has {keys:?}");
            let mut required = allowed.iter().filter_map(|known| known.strip_prefix('*'));
            assert!(required.all(|known| keys.contains(&known)), "<{name}> has {keys:?}");
        }
    }
}

/// What the schemas say of an attribute's value: xs:int, xs:decimal; the rest are strings.
fn is_valid(attribute: &str, value: &str) -> bool {
    match attribute {
        "tests" | "failures" | "errors" | "skipped" => value.parse::<u32>().is_ok(),
        "time" => value.parse::<f64>().is_ok_and(f64::is_finite) && !value.contains(['e', 'E']),
        _ => true,
    }
}

#[test]
fn values_are_of_the_types_that_the_schemas_name() {
    for report in [everything(), report([]), report([failing_candidate(), doubtful()])] {
        for (name, _, attributes) in elements(&junit(&report)) {
            for (key, value) in attributes {
                assert!(is_valid(&key, &value), "<{name} {key}=\"{value}\">");
            }
        }
    }
    assert!(!is_valid("time", "1e3") && !is_valid("tests", "-1"));
}

#[test]
fn names_from_files_stay_inside_their_values() {
    let name = "a\"> <testcase name='b'/> & ]]> \u{1b}[31m \u{0} \u{ffff}\n";
    let mut hostile = failing_candidate();
    hostile.subject.name = name.into();
    hostile.reason = Some(name.into());
    let xml = junit(&report([hostile]));
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(xml.chars().all(allowed), "{xml:?}");
    let of =
        |xml: &str| elements(xml).into_iter().map(|(name, parent, _)| (name, parent)).collect::<Vec<_>>();
    assert_eq!(of(&xml), of(&junit(&report([failing_candidate()]))));
}

#[test]
fn the_counts_are_those_of_the_elements() {
    let xml = junit(&everything());
    let elements = elements(&xml);
    let count = |wanted: &str| elements.iter().filter(|(name, ..)| name == wanted).count().to_string();
    let (_, _, totals) = &elements[0];
    for (attribute, element) in [("tests", "testcase"), ("failures", "failure"), ("errors", "error")] {
        let total = totals.iter().find(|(key, _)| key == attribute).map(|(_, value)| value);
        assert_eq!(total, Some(&count(element)), "{attribute}");
    }
}

#[test]
fn a_suite_is_of_a_model_and_a_reference_and_has_a_time() {
    let xml = junit(&everything());
    let head = "<testsuite name=\"tiny-llama2: llama.cpp-q8_0\" ";
    assert!(xml.contains(head), "{xml}");
    assert!(xml.contains("timestamp=\"2026-01-02T03:04:05.000+00:00\" time=\"1.250\""), "{xml}");
    assert!(xml.contains("<testcase name=\"qkv\" classname=\"tiny-llama2.llama_cpp-q8_0\""), "{xml}");
}
