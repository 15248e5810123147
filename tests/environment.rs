//! Environment variables of the specifications: defaults of options, with a line that says so.

use std::ffi::OsString;

use xcheck::cli::with_environment;

/// The words of a command line in an environment, and the lines about it; or the error.
fn read(words: &str, variables: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
    let words = words.split(' ').map(OsString::from).collect();
    let value =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
    let (words, notes) = with_environment(words, value).map_err(|error| error.to_string())?;
    Ok((words.join(" ".as_ref()).into_string().expect("Unicode"), notes))
}

#[test]
fn each_variable_is_the_default_of_its_option() {
    let cases = [
        ("BITNET_STRICT_MODE", "1", "--strict"),
        ("BITNET_DETERMINISTIC", "true", "--deterministic"),
        ("BITNET_SEED", "42", "--seed 42"),
        ("MAX_CONTEXT", "128", "--context 128"),
        ("HALF", "1", "--numerics transformers --dtype f16"),
    ];
    for (name, value, options) in cases {
        let (words, notes) = read("xcheck generate --model m", &[(name, value)]).expect("it is read");
        assert_eq!(words, format!("xcheck generate {options} --model m"));
        assert_eq!(notes, [format!("{name}={value} is read as {options}")]);
    }
}

#[test]
fn an_option_goes_before_its_variable() {
    let all = [
        ("BITNET_DETERMINISTIC", "1"),
        ("BITNET_SEED", "42"),
        ("MAX_CONTEXT", "128"),
        ("HALF", "1"),
        ("BITNET_STRICT_MODE", "0"),
    ];
    let given = "xcheck generate --threads 2 --seed=7 --context 9 --numerics f32 --model m";
    assert_eq!(read(given, &all), Ok((given.to_owned(), Vec::new())));
}

#[test]
fn a_command_without_the_option_does_not_read_its_variable() {
    for words in ["xcheck checkpoints", "xcheck", "xcheck --version", "xcheck nope --seed 1"] {
        let variables = [("BITNET_SEED", "nonsense"), ("HALF", "nonsense")];
        assert_eq!(read(words, &variables), Ok((words.to_owned(), Vec::new())));
    }
    // HALF computes in f16, which decides no verdict.
    let check = "xcheck check --model m --candidate c";
    assert_eq!(read(check, &[("HALF", "1")]), Ok((check.to_owned(), Vec::new())));
}

#[test]
fn a_value_that_cannot_be_read_is_an_error() {
    let cases = [
        ("BITNET_STRICT_MODE", "maybe", "expected 1 or 0"),
        ("BITNET_DETERMINISTIC", "2", "expected 1 or 0"),
        ("BITNET_SEED", "-1", "an integer of at least 0"),
        ("MAX_CONTEXT", "0", "an integer of at least 1"),
        ("HALF", "f16", "expected 1 or 0"),
        ("RAYON_NUM_THREADS", "abc", "an integer of at least 0"),
    ];
    for (name, value, expected) in cases {
        let message = read("xcheck generate --model m", &[(name, value)]).expect_err("it is refused");
        let says = [name, &format!("'{value}'"), expected].iter().all(|part| message.contains(part));
        assert!(says, "{message}");
    }
    assert!(read("xcheck generate --model m", &[("BITNET_SEED", "")]).is_ok(), "empty is unset");
}
