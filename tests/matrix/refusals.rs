//! What a file of cells cannot say: one message each, with its line, before anything is run.

use super::bed::{Bed, CHECK};

fn file(rest: &str) -> String {
    format!("{CHECK}\n{rest}")
}

const AXES: &str = "[axes]\ndump = [\"right.safetensors\", \"other.safetensors\"]\n";

#[test]
fn what_is_no_toml_or_has_other_fields() {
    let bed = Bed::new();
    bed.assert_refused("command = [", &["cells.toml, line 1: "]);
    bed.assert_refused(&file(&format!("axis = 1\n{AXES}")), &["cells.toml, line 2: unknown field `axis`"]);
    bed.assert_refused(AXES, &["missing field `command`"]);
    bed.assert_refused(CHECK, &["missing field `axes`"]);
    let expect = file(&format!("{AXES}[[expect]]\nwhere = {{}}\nverdict = \"fail\"\nwhy = \"x\""));
    bed.assert_refused(&expect, &["cells.toml, line 7: unknown field `why`"]);
    bed.0.run(&["matrix", "none.toml"]).refused(&["none.toml"]);
}

#[test]
fn axes_that_make_no_cells_or_some_twice() {
    let bed = Bed::new();
    let refused = [
        ("[axes]", "line 2: there are no axes"),
        ("[axes]\ndump = []", "line 3: axis 'dump': the axis has no values"),
        ("[axes]\ndump = [\"a\", \"a\"]", "line 3: axis 'dump': duplicate value 'a'"),
        ("[axes]\ndump = [\"\"]", "line 3: axis 'dump': a value is empty"),
        ("[axes]\ndump = [\"a\\u0000\"]", "a control character"),
        ("[axes]\ndump = [1.5]", "a value is 1.5, expected a string or an integer"),
        ("[axes]\ndump = [\"a\"]\n\"a}b\" = [\"a\"]", "line 4: axis 'a}b': invalid name"),
        ("[axes]\ndump = [\"a\"]\nout = [\"a\"]", "line 4: axis 'out'"),
        ("[axes]\ndump = [\"a\"]\nmore = [\"a\"]", "line 2: axis 'more' has no effect"),
    ];
    refused.iter().for_each(|(rest, expected)| bed.assert_refused(&file(rest), &["cells.toml", expected]));
    let many: Vec<String> = (0..101).map(|number| number.to_string()).collect();
    let many = format!("[axes]\ndump = [{0}]\na = [{0}]\n", many.join(", "));
    let text = format!("{}{many}", "command = [\"check\", \"{a}{dump}\"]\n");
    bed.assert_refused(&text, &["line 2: the axes have more than 10000 combinations"]);
    let beside = "command = [\"check\", \"--model\", \"m\", \"--candidate\", \"{a}{b}\"]\n[axes]\na = [\"x\", \"xy\"]\nb = [\"yz\", \"z\"]";
    bed.assert_refused(beside, &["line 1: the command of xy, z: it is the same as that of x, yz"]);
}

#[test]
fn names_that_are_not_known() {
    let bed = Bed::new();
    let refused = [
        ("rows = [\"engine\"]\n", "line 2: unknown axis 'engine'; known: dump"),
        ("rows = [\"dump\"]\ncolumns = [\"dump\"]\n", "rows and columns together must name each axis once"),
        ("exclude = [{ engine = \"a\" }]\n", "line 2: unknown axis 'engine'"),
        (
            "include = [{ dump = \"a\" }]\n",
            "line 2: include: 'a' is not a value of the axis 'dump'; known: right",
        ),
        ("exclude = [{}]\n", "line 2: exclude names no axis"),
        ("exclude = [{ dump = [\"right.safetensors\", \"other.safetensors\"] }]\n", "leave no cell"),
        ("reads = [\"{engine}\"]\n", "line 2: unknown axis 'engine'"),
        ("reads = [\"{dump\"]\n", "line 2: '{dump' has an unmatched {"),
        ("make = \"{dump}\"\n", "line 2: make and command must both use {out}"),
        ("make = []\n", "line 2: make is neither a shell command line nor a list of words"),
        ("limit = 0\n", "line 2: limit is 0"),
    ];
    refused
        .iter()
        .for_each(|(rest, expected)| bed.assert_refused(&file(&format!("{rest}{AXES}")), &[expected]));
    let command = "command = [\"check\", \"--model\", \"{out}\", \"{dump}\"]\n";
    bed.assert_refused(&format!("{command}{AXES}"), &["line 1: unknown axis 'out'; known: dump"]);
}

#[test]
fn expectations_that_cannot_be_met() {
    let bed = Bed::new();
    let expect = |fields: &str| {
        file(&format!("{AXES}[[expect]]\nwhere = {{ dump = \"right.safetensors\" }}\n{fields}"))
    };
    let refused = [
        ("verdict = \"pass\"\nreason = \"x\"", "line 6: verdict is 'pass', expected fail or inconclusive"),
        ("verdict = \"fail\"\nreason = \" \"", "line 7: reason is empty"),
        ("verdict = \"fail\"\nreason = \"x\"\ntap = \"rope\"", "line 8: tap is 'rope'"),
        ("verdict = \"inconclusive\"\nreason = \"x\"\ntap = \"q\"", "line 8: tap is 'q'"),
    ];
    refused.iter().for_each(|(fields, expected)| bed.assert_refused(&expect(fields), &[expected]));
    let twice = format!(
        "{0}\n{1}",
        expect("verdict = \"fail\"\nreason = \"x\""),
        "[[expect]]\nwhere = { dump = \"right.safetensors\" }\nverdict = \"fail\"\nreason = \"y\""
    );
    bed.assert_refused(&twice, &["duplicate expectation for right.safetensors"]);
    let idle = file(&format!(
        "exclude = [{{ dump = \"right.safetensors\" }}]\n{AXES}[[expect]]\nwhere = {{ dump = \"right.safetensors\" }}\nverdict = \"fail\"\nreason = \"x\""
    ));
    bed.assert_refused(&idle, &["expect matches no cell"]);
}

#[test]
fn commands_that_leave_no_report_of_their_own() {
    let bed = Bed::new();
    let command = |words: &str| format!("command = [{words}]\n[axes]\nx = [\"a\"]");
    let refused = [
        (
            "\"dump\", \"{x}\"",
            "the command of a: the command begins with 'dump', expected one of run, check, audit, compare, merge",
        ),
        (
            "\"run\", \"--model\", \"{x}\", \"--report=b\"",
            "the command has --report, which xcheck matrix sets itself",
        ),
        ("\"run\", \"--model\", \"{x}\", \"--format\", \"json\"", "the command has --format"),
        ("\"check\", \"--model\", \"{x}\", \"--candidate\", \"-\"", "the command reads standard input"),
        ("\"run\", \"--modle\", \"{x}\"", "unexpected argument '--modle'"),
        ("\"run\", \"{x}\"", "unexpected argument 'a'"),
    ];
    refused.iter().for_each(|(words, expected)| bed.assert_refused(&command(words), &["line 1: ", expected]));
}

#[test]
fn an_old_table_is_gone_whatever_is_wrong() {
    let bed = Bed::new();
    bed.matrix(&file("axes.dump = [\"right.safetensors\"]"), &[]);
    bed.assert_refused("", &["cells.toml"]);
    assert!(!bed.path("out/matrix.html").exists() && bed.path("out/cells").exists());
}
