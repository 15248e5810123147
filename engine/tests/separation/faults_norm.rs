//! Norms with an error as small as such errors get.

use xcheck_engine::numerics::Numerics;

use super::dice::Law;
use super::norm::{Rows, Way};
use super::order::{Adder, Order};
use super::specimen::{Specimen, Store};

const ROWS: usize = 64;

/// Of bf16 four times as many: what rounding leaves of a shift of 5e-6 is one value in some ten thousand.
fn rows(width: usize, rms: f64, store: Store) -> (Rows, Adder) {
    let count = if store == Store::Bf16 { 4 * ROWS } else { ROWS };
    (Rows::new(Law::Normal, [count, width], rms, store, 4000), Adder::new(Order::Lanes, width, 0))
}

fn about(name: &str, width: usize, rms: f64, store: Store) -> String {
    format!("{name}, rms {rms}, {store:?}, d = {width}")
}

pub fn honest(width: usize, rms: f64, store: Store) -> Specimen {
    let (rows, adder) = rows(width, rms, store);
    rows.specimen(about("RMSNorm", width, rms, store), rows.rms(&adder, Way::Divided))
}

/// 1e-6 is what most models have where others have 1e-5.
pub fn wrong_eps(width: usize, rms: f64, store: Store) -> Specimen {
    let (rows, adder) = rows(width, rms, store);
    let own = rows.rms_by(&adder, Way::Reciprocal, |mean| (mean + 1e-6).sqrt(), store);
    rows.specimen(about("RMSNorm, eps 1e-6 for 1e-5", width, rms, store), own)
}

pub fn eps_outside(width: usize, rms: f64, store: Store) -> Specimen {
    let (rows, adder) = rows(width, rms, store);
    let own = rows.rms_by(&adder, Way::Reciprocal, |mean| mean.sqrt() + rows.eps, store);
    rows.specimen(about("RMSNorm, eps outside the root", width, rms, store), own)
}

pub fn wrong_gain(width: usize) -> Specimen {
    let (rows, adder) = rows(width, 1.0, Store::F32);
    let mut gain = rows.gain.clone();
    gain[width / 3] *= 1.0 + 1e-5;
    let own = Rows { gain, x: rows.x.clone(), bias: Vec::new(), ..rows }.rms(&adder, Way::Reciprocal);
    let (rows, _) = self::rows(width, 1.0, Store::F32);
    rows.specimen(about("RMSNorm, one gain 1e-5 off", width, 1.0, Store::F32), own)
}

/// The normed row is not rounded before its gain, where that is declared.
pub fn fused(width: usize, store: Store) -> Specimen {
    let (rows, adder) = rows(width, 1.0, store);
    let own = rows.rms_by(&adder, Way::Reciprocal, |mean| (mean + rows.eps).sqrt(), Store::F32);
    rows.specimen(about("RMSNorm, one rounding for two", width, 1.0, store), own)
}

/// It is, where one rounding is declared.
pub fn unfused(width: usize, store: Store) -> Specimen {
    let (rows, adder) = rows(width, 1.0, store);
    let traced = store.traced_as_fused().rms_norm(&rows.tensor(), &rows.norm());
    let own = rows.rms(&adder, Way::Reciprocal);
    let other = rows.rms_by(&adder, Way::Divided, |mean| (mean + rows.eps).sqrt(), Store::F32);
    let name = about("RMSNorm, two roundings for one", width, 1.0, store);
    Specimen::new(name, traced, own).beside(other)
}

pub fn layer_eps(width: usize) -> Specimen {
    let (rows, adder) = rows(width, 1.0, Store::F32);
    let traced = rows.store.traced().layer_norm(&rows.tensor(), &rows.layer());
    let own = Rows { eps: 1e-6, ..rows }.layered(&adder, false);
    Specimen::new(about("LayerNorm, eps 1e-6 for 1e-5", width, 1.0, Store::F32), traced, own)
}

#[test]
fn another_rms_norm_eps_is_seen_in_f32_at_every_width() {
    for width in [64, 1024, 4096] {
        for rms in [1.0, 0.1, 0.02] {
            honest(width, rms, Store::F32).assert_honest();
            wrong_eps(width, rms, Store::F32).assert_caught();
            eps_outside(width, rms, Store::F32).assert_caught();
        }
        layer_eps(width).assert_caught();
    }
}

#[test]
fn another_rms_norm_eps_is_seen_in_bf16_and_f16_among_many_values() {
    for store in Store::SHORT {
        for rms in [1.0, 0.1] {
            honest(4096, rms, store).assert_honest();
            for fault in [wrong_eps(4096, rms, store), eps_outside(4096, rms, store)] {
                assert!(fault.assert_caught().over > 0, "{}", fault.name);
            }
        }
    }
}

#[test]
fn one_gain_that_is_a_little_off_is_seen() {
    for width in [64, 1024, 4096] {
        let side = wrong_gain(width).assert_caught();
        assert!((1..=ROWS).contains(&side.over), "it is in one column, not in {} values", side.over);
        let at = side.worst.first().expect("a worst value").flat;
        assert_eq!(at % width, width / 3, "in that column");
    }
}

#[test]
fn a_rounding_too_many_or_too_few_is_seen() {
    for store in Store::SHORT {
        for width in [64, 1024, 4096] {
            for fault in [fused(width, store), unfused(width, store)] {
                let over = fault.assert_caught().over;
                assert!(over * 10 > fault.own.len(), "{}: it is in many places, not {over}", fault.name);
            }
        }
    }
}
