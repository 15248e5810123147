//! The table of llama-perplexity, line by line, with a 95 % interval by chunk after each line.

use std::fmt::Write;

use crate::kld::figures::{Estimate, KldFigures, TokenStatistics};

/// Returns the table of figures as text.
pub fn table(figures: &KldFigures) -> String {
    let mut text = String::from("====== Perplexity statistics ======\n");
    let six = |estimate: &Estimate| {
        format!(
            "{:10.6} ± {:10.6}{}",
            estimate.value,
            estimate.as_if_independent,
            within(estimate, 1.0, 6, "")
        )
    };
    line(&mut text, "Mean PPL(Q)                   : ", &six(&figures.ppl));
    line(&mut text, "Mean PPL(base)                : ", &six(&figures.ppl_base));
    line(&mut text, "Cor(ln(PPL(Q)), ln(PPL(base))): ", &format!("{:6.2}%", 100.0 * figures.correlation));
    line(&mut text, "Mean ln(PPL(Q)/PPL(base))     : ", &six(&figures.ln_ratio));
    line(&mut text, "Mean PPL(Q)/PPL(base)         : ", &six(&figures.ratio));
    line(&mut text, "Mean PPL(Q)-PPL(base)         : ", &six(&figures.difference));
    text += "\n====== KL divergence statistics ======\n";
    line(&mut text, "Mean    KLD: ", &six(&figures.kld.mean));
    for (name, value) in named(&figures.kld) {
        line(&mut text, &format!("{name} KLD: "), &format!("{value:10.6}"));
    }
    text += "\n====== Token probability statistics ======\n";
    let percent = |estimate: &Estimate| {
        let [value, error] = [estimate.value, estimate.as_if_independent].map(|part| 100.0 * part);
        format!("{value:6.3} ± {error:5.3} %{}", within(estimate, 100.0, 3, " %"))
    };
    line(&mut text, "Mean    Δp: ", &percent(&figures.p_diff.mean));
    for (name, value) in named(&figures.p_diff) {
        line(&mut text, &format!("{name} Δp: "), &format!("{:6.3}%", 100.0 * value));
    }
    line(&mut text, "RMS Δp    : ", &percent(&figures.p_diff_rms));
    line(&mut text, "Same top p: ", &percent(&figures.same_top));
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    writeln!(text, "{name}{value}").expect("writing to a String cannot fail");
}

fn within(estimate: &Estimate, factor: f64, digits: usize, unit: &str) -> String {
    let ends =
        |[low, high]: [f64; 2]| format!("   [{:.digits$}, {:.digits$}]{unit}", low * factor, high * factor);
    estimate.interval.map(ends).unwrap_or_default()
}

/// Returns the percentiles and the median in descending order, with the labels of llama-perplexity.
fn named(tokens: &TokenStatistics) -> Vec<(String, f64)> {
    let name = |&(percent, value): &(f64, f64)| {
        let name = match percent {
            100.0 => "Maximum".to_owned(),
            0.0 => "Minimum".to_owned(),
            _ => format!("{percent:4.1}%  "),
        };
        (name, value)
    };
    let mut all: Vec<_> = tokens.percentiles.iter().map(name).collect();
    let middle = tokens.percentiles.partition_point(|(percent, _)| *percent > 50.0);
    all.insert(middle, ("Median ".to_owned(), tokens.median));
    all
}
