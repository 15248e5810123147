//! Metadata: every type of value, and the getters that readers of models use.

use xcheck::error::{Error, KeyError};
use xcheck::format::Gguf;
use xcheck::format::gguf::{GgufNumber, GgufValue, MetadataType, StringArray};

use super::builder::{self, GgufBuilder, array, string, strings, value};
use super::{assert_refused_as, read_gguf};

/// A file with one key, "k".
fn with(value: Vec<u8>) -> Gguf {
    read_gguf(GgufBuilder::new().key("k", value).build()).unwrap()
}

fn number(type_id: u32, bytes: &[u8]) -> GgufNumber {
    match with(value(type_id, bytes)).metadata().get("k") {
        Some(&GgufValue::Number(number)) => number,
        other => panic!("{other:?}"),
    }
}

fn numbers(element_type: u32, elements: &[u8], count: u64) -> Vec<GgufNumber> {
    match with(array(element_type, count, elements)).metadata().get("k") {
        Some(GgufValue::Numbers(numbers)) => numbers.iter().collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_number_of_every_type_reads_back_as_written() {
    assert_eq!(number(0, &200u8.to_le_bytes()), GgufNumber::U8(200));
    assert_eq!(number(1, &(-100i8).to_le_bytes()), GgufNumber::I8(-100));
    assert_eq!(number(2, &60_000u16.to_le_bytes()), GgufNumber::U16(60_000));
    assert_eq!(number(3, &(-30_000i16).to_le_bytes()), GgufNumber::I16(-30_000));
    assert_eq!(number(4, &u32::MAX.to_le_bytes()), GgufNumber::U32(u32::MAX));
    assert_eq!(number(5, &i32::MIN.to_le_bytes()), GgufNumber::I32(i32::MIN));
    assert_eq!(number(6, &1e-5f32.to_le_bytes()), GgufNumber::F32(1e-5));
    assert_eq!(number(10, &u64::MAX.to_le_bytes()), GgufNumber::U64(u64::MAX));
    assert_eq!(number(11, &i64::MIN.to_le_bytes()), GgufNumber::I64(i64::MIN));
    assert_eq!(number(12, &1e-300f64.to_le_bytes()), GgufNumber::F64(1e-300));
}

#[test]
fn an_array_of_every_number_type_reads_back_as_written() {
    assert_eq!(numbers(0, &[1, 255], 2), [GgufNumber::U8(1), GgufNumber::U8(255)]);
    assert_eq!(numbers(1, &[1, 255], 2), [GgufNumber::I8(1), GgufNumber::I8(-1)]);
    assert_eq!(numbers(2, &[1, 2], 1), [GgufNumber::U16(0x0201)]);
    assert_eq!(numbers(3, &[1, 255], 1), [GgufNumber::I16(-255)]);
    assert_eq!(numbers(4, &7u32.to_le_bytes(), 1), [GgufNumber::U32(7)]);
    assert_eq!(numbers(5, &(-7i32).to_le_bytes(), 1), [GgufNumber::I32(-7)]);
    assert_eq!(
        numbers(6, &[0.5f32, -0.0].map(f32::to_le_bytes).concat(), 2),
        [GgufNumber::F32(0.5), GgufNumber::F32(-0.0)]
    );
    assert_eq!(numbers(10, &7u64.to_le_bytes(), 1), [GgufNumber::U64(7)]);
    assert_eq!(numbers(11, &(-7i64).to_le_bytes(), 1), [GgufNumber::I64(-7)]);
    assert_eq!(numbers(12, &0.1f64.to_le_bytes(), 1), [GgufNumber::F64(0.1)]);
    assert_eq!(numbers(12, &[], 0), []);
}

#[test]
fn truths_and_texts_read_back_as_written() {
    assert_eq!(with(value(7, &[1])).metadata().get("k"), Some(&GgufValue::Bool(true)));
    assert_eq!(with(value(7, &[0])).metadata().get("k"), Some(&GgufValue::Bool(false)));
    assert_eq!(with(array(7, 2, &[0, 1])).metadata().get("k"), Some(&GgufValue::Bools(vec![false, true])));
    assert_eq!(with(string("käse\n")).metadata().get("k"), Some(&GgufValue::String("käse\n".into())));
}

#[test]
fn an_array_of_strings_gives_each_by_position_and_all_in_order() {
    let file = with(strings(&["", "ab", "", "é", "c"]));
    let vocabulary: &StringArray = file.require("k").unwrap();
    assert_eq!(vocabulary.iter().collect::<Vec<_>>(), ["", "ab", "", "é", "c"]);
    assert_eq!(vocabulary.get(3), Some("é"));
    assert_eq!(vocabulary.get(5), None);
    assert!(with(strings(&[])).require::<&StringArray>("k").unwrap().is_empty());
}

#[test]
fn keys_keep_the_order_of_the_file() {
    let file = read_gguf(GgufBuilder::sample().build()).unwrap();
    let keys: Vec<&str> = file.metadata().iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..2], ["general.architecture", "llama.block_count"]);
    assert_eq!(keys[2..], ["tokenizer.ggml.tokens", "tokenizer.ggml.scores", "flags"]);
}

#[test]
fn an_integer_is_found_whatever_its_width_as_long_as_it_fits() {
    for eight in [
        value(0, &[8]),
        value(1, &[8]),
        value(2, &8u16.to_le_bytes()),
        value(3, &8i16.to_le_bytes()),
        builder::u32(8),
        value(5, &8i32.to_le_bytes()),
        value(10, &8u64.to_le_bytes()),
        value(11, &8i64.to_le_bytes()),
    ] {
        let file = with(eight);
        assert_eq!(file.require::<u32>("k").unwrap(), 8);
        assert_eq!(file.require::<usize>("k").unwrap(), 8);
        assert_eq!(file.require::<i32>("k").unwrap(), 8);
    }
}

#[test]
fn floats_of_either_width_are_found_where_nothing_is_lost() {
    assert_eq!(with(value(6, &1e-5f32.to_le_bytes())).require::<f32>("k").unwrap(), 1e-5);
    assert_eq!(with(value(12, &10000f64.to_le_bytes())).require::<f32>("k").unwrap(), 10000.0);
    refuses::<f32>(value(12, &1e-5f64.to_le_bytes()), "0.00001 (f64)", "f32");
}

#[test]
fn arrays_convert_as_their_elements_do() {
    let scores = array(12, 2, &[0.5f64, -2.0].map(f64::to_le_bytes).concat());
    assert_eq!(with(scores).require::<Vec<f32>>("k").unwrap(), [0.5, -2.0]);
    let kinds = array(4, 2, &[1u32, 6].map(u32::to_le_bytes).concat());
    assert_eq!(with(kinds).require::<Vec<i32>>("k").unwrap(), [1, 6]);
    assert_eq!(with(array(7, 1, &[1])).require::<Vec<bool>>("k").unwrap(), [true]);
    refuses::<Vec<i32>>(array(4, 1, &u32::MAX.to_le_bytes()), "1 numbers (u32)", "i32");
}

/// Asserts that "k" is refused as a `T`, showing what it is and what was expected.
fn refuses<T: for<'a> MetadataType<'a>>(value: Vec<u8>, found: &str, expected: &str) {
    let file = with(value);
    assert_refused_as!(
        file.require::<T>("k").map(drop),
        Error::Key(KeyError::Bad { .. }),
        "'k'",
        found,
        expected
    );
    assert!(file.optional::<T>("k").is_err(), "a default must not hide a wrong type");
}

#[test]
fn a_value_that_does_not_fit_the_type_asked_for_is_refused() {
    refuses::<u32>(value(10, &(1u64 << 32).to_le_bytes()), "4294967296 (u64)", "u32");
    refuses::<usize>(value(5, &(-1i32).to_le_bytes()), "-1 (i32)", "usize");
    refuses::<i32>(builder::u32(1 << 31), "2147483648 (u32)", "i32");
    refuses::<u32>(value(6, &8f32.to_le_bytes()), "8 (f32)", "u32");
    refuses::<u32>(string("8"), "\"8\" (string)", "u32");
    refuses::<bool>(value(0, &[1]), "1 (u8)", "a bool");
    refuses::<f32>(builder::u32(1), "1 (u32)", "f32");
}

#[test]
fn a_long_text_is_refused_in_a_short_message() {
    let file = with(string(&"x\n".repeat(10_000)));
    let message = file.require::<u32>("k").unwrap_err().to_string();
    assert!(message.len() < 1000 && !message.contains('\n'), "{message}");
}

#[test]
fn a_missing_key_is_named_unless_it_is_optional() {
    let file = with(value(7, &[1]));
    let missing = file.require::<u32>("llama.block_count");
    assert_refused_as!(missing, Error::Key(KeyError::Missing { .. }), "'llama.block_count'", "u32");
    assert_eq!(file.optional::<u32>("llama.block_count").unwrap(), None);
    assert_eq!(file.optional::<bool>("k").unwrap(), Some(true));
}
