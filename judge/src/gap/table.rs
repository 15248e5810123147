//! The report for the terminal.

use std::fmt::Write;

use super::assessment::GapAssessment;
use super::route_effect::RouteEffect;

/// Returns the report for the terminal.
pub fn gap_table(found: &GapAssessment) -> String {
    let mut text = format!("{}  {}\n", found.verdict.name().to_uppercase(), found.sentence);
    for finding in &found.findings {
        let _ = writeln!(text, "  {}: {}", finding.cause, finding.text);
    }
    let values = &found.values;
    let _ = writeln!(
        text,
        "\n{} sequences, {} tokens, {} informative",
        found.sequences, values.compared, found.informative
    );
    let counts = [
        (values.only[0], "tokens that only the rollout scores"),
        (values.only[1], "tokens that only the trainer scores"),
        (values.prompt, "tokens of prompts, not compared"),
        (found.join.only_rollout, "sequences that only the rollout has"),
        (found.join.only_trainer, "sequences that only the trainer has"),
        (found.join.at_other_index, "sequences at another index, matched by their tokens"),
        (found.not_tested, "tokens beyond the memory limit, left out of scale and patterns"),
    ];
    for (count, name) in counts.into_iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "{count} {name}");
    }
    if let Some(training) = &found.training {
        let _ = writeln!(
            text,
            "\nTraining\n  mean |Δ log p|          {:.3e}, largest {:.3e}\n  KL k1                   {:.3e}\n  KL k3                   {:.3e}, of \
             which rounding explains {:.3e}\n  clipped at ±{:<4}        {:.3} % of the tokens\n  mean ratio              {:.5}\n  effective sample size   \
             {:.2} %",
            training.mean_abs,
            training.max_abs,
            training.kl_k1,
            training.kl_k3,
            training.kl_k3_rounding,
            training.clip,
            100.0 * training.clip_fraction,
            training.mean_ratio,
            100.0 * training.effective_sample_size
        );
    }
    text += &found.experts.as_ref().map_or(String::new(), RouteEffect::lines);
    let _ = writeln!(
        text,
        "\n{:<24}{:>9}  {:>9}  {:>10}  {:>9}",
        "Tokens", "count", "scale", "mean Δ", "max |Δ|"
    );
    for class in &found.classes {
        let _ = writeln!(
            text,
            "{:<24}{:>9}  {:>9.2e}  {:>+10.2e}  {:>9.2e}",
            class.tokens, class.count, class.scale, class.mean, class.max_abs
        );
    }
    let limit = found.rounding_scale.map_or(String::new(), |limit| format!(" (rounding: up to {limit:.2e})"));
    let _ = writeln!(text, "all: scale {:.2e}{limit}", found.scale);
    let worst: Vec<_> =
        found.worst_sequences.iter().map(|(index, scale)| format!("{index} ({scale:.2e})")).collect();
    let _ = writeln!(text, "worst sequences: {}", worst.join(", "));
    text
}
