//! Criterion by criterion: what each says of honest results and of faults, beside another honest engine.

use super::criteria::{Kind, Pair};
use super::dice::Law;
use super::specimen::{Specimen, Store};
use super::{faults_attention as attention, faults_linear as linear, faults_norm as norm};

const PRODUCT: Kind = Kind { is_short: false, nmse: 5e-4, absolute: 1e-4 };
const NORM: Kind = Kind { is_short: false, nmse: 1e-7, absolute: 1e-5 };
const ROPE: Kind = NORM;
const SOFTMAX: Kind = Kind { is_short: false, nmse: 1e-6, absolute: 1e-4 };
const ACTIVATION: Kind = Kind { is_short: false, nmse: 1e-7, absolute: 1e-4 };

fn short(kind: Kind) -> Kind {
    Kind { is_short: true, ..kind }
}

const D: usize = 4096;

/// Honest results, and which kind each is.
fn honest() -> Vec<(Specimen, Kind)> {
    let (f32, bf16) = (Store::F32, Store::Bf16);
    vec![
        (linear::honest(D, f32), PRODUCT),
        (linear::of_stream(Law::Outliers, 1.0, 0.0, f32), PRODUCT),
        (linear::of_stream(Law::Normal, 256.0, 0.0, f32), PRODUCT),
        (linear::honest_codes(D), PRODUCT),
        (norm::honest(D, 1.0, f32), NORM),
        (norm::honest(D, 0.1, f32), NORM),
        (attention::honest_scores(f32), PRODUCT),
        (attention::honest_softmax(D), SOFTMAX),
        (attention::honest_rope(128), ROPE),
        (attention::honest_gelu(f32), ACTIVATION),
        (attention::honest_silu(f32), ACTIVATION),
        (linear::honest(D, bf16), short(PRODUCT)),
        (norm::honest(D, 1.0, bf16), short(NORM)),
        (attention::honest_scores(bf16), short(PRODUCT)),
        (attention::honest_gelu(bf16), short(ACTIVATION)),
        (attention::honest_silu(bf16), short(ACTIVATION)),
    ]
}

fn faults() -> Vec<(Specimen, Kind)> {
    let (f32, bf16) = (Store::F32, Store::Bf16);
    vec![
        (linear::tf32(D), PRODUCT),
        (linear::f16_weights(D), PRODUCT),
        (linear::too_large(D, 1e-5), PRODUCT),
        (linear::too_large(D, 1e-6), PRODUCT),
        (linear::of_stream(Law::Normal, 1.0 / 8192.0, 1e-3, f32), PRODUCT),
        (linear::one_missing(D, f32), PRODUCT),
        (linear::not_quantised(D), PRODUCT),
        (linear::scale_in_f32(D), PRODUCT),
        (norm::wrong_eps(D, 1.0, f32), NORM),
        (norm::eps_outside(D, 1.0, f32), NORM),
        (norm::wrong_eps(D, 0.1, f32), NORM),
        (norm::wrong_gain(D), NORM),
        (norm::layer_eps(D), NORM),
        (attention::rounded_scale(f32), PRODUCT),
        (attention::temperature(D), SOFTMAX),
        (attention::least_masked(D), SOFTMAX),
        (attention::wrong_base(128), ROPE),
        (attention::rounded_frequencies(128), ROPE),
        (attention::erf_for_tanh(f32), ACTIVATION),
        (linear::too_large_in_16_bits(1024, bf16), short(PRODUCT)),
        (linear::one_missing(D, bf16), short(PRODUCT)),
        (norm::wrong_eps(D, 1.0, bf16), short(NORM)),
        (norm::eps_outside(D, 1.0, bf16), short(NORM)),
        (norm::wrong_eps(D, 0.1, bf16), short(NORM)),
        (norm::fused(D, bf16), short(NORM)),
        (norm::unfused(D, bf16), short(NORM)),
        (attention::rounded_scale(bf16), short(PRODUCT)),
        (attention::fused_scores(bf16), short(PRODUCT)),
        (attention::unfused_scores(bf16), short(PRODUCT)),
        (attention::erf_for_tanh(bf16), short(ACTIVATION)),
        (attention::fused_silu(bf16), short(ACTIVATION)),
        (attention::unfused_silu(bf16), short(ACTIVATION)),
    ]
}

/// A verdict; one that is wrong stands out.
fn cell(passes: bool, is_honest: bool) -> String {
    let verdict = if passes { "pass" } else { "FAIL" };
    if passes == is_honest { verdict.to_owned() } else { format!("**{verdict}**") }
}

#[test]
fn xcheck_is_wrong_in_no_row_of_the_table() {
    println!("| | cosine | ggml NMSE | torch | absolute | xcheck | bound_ratio | over | bias z |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut wrong = [0; 5];
    let rows =
        honest().into_iter().map(|row| (row, true)).chain(faults().into_iter().map(|row| (row, false)));
    for ((specimen, kind), is_honest) in rows {
        let pair = Pair { own: &specimen.own, other: &specimen.other };
        let judged = specimen.judged();
        let side = &judged.dump;
        let verdicts =
            [pair.cosine(), pair.nmse(kind), pair.close(kind), pair.absolute(kind), side.is_explained()];
        let cells = verdicts.map(|passes| cell(passes, is_honest)).join(" | ");
        let z = side.bias.map_or("-".to_owned(), |bias| format!("{:.1}", bias.z));
        let name = if is_honest { format!("honest: {}", specimen.name) } else { specimen.name.clone() };
        println!("| {name} | {cells} | {:.3} | {} | {z} |", side.bound_ratio, side.over);
        wrong.iter_mut().zip(verdicts).for_each(|(wrong, passes)| *wrong += usize::from(passes != is_honest));
        assert!(judged.engine.is_explained(), "{}: the other engine is honest", specimen.name);
    }
    println!("| wrong | {} | | | |", wrong.map(|count| count.to_string()).join(" | "));
    let [cosine, nmse, close, absolute, xcheck] = wrong;
    assert_eq!(xcheck, 0, "xcheck has no wrong cell");
    assert!([cosine, nmse, close, absolute].iter().all(|&wrong| wrong > 0), "others are compared in earnest");
}
