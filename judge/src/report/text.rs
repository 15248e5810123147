//! Formatting of numbers, sites and external names, shared by all formats for people.

use textwrap::core::display_width;

use crate::check::{Gate, Role, Tolerance};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::format::commands;
use crate::measure::Errors;
use crate::verdict::{CheckpointSummary, Coverage, Finding, Outcome, SiteResult, Verdict, Waiver};

/// Maximum line width, except for commands to copy.
pub const WIDTH: usize = 80;

/// Placeholder for a missing figure.
pub(crate) const NOTHING: &str = "-";

/// Formats an error figure with two digits. Further digits vary between compilers.
pub(crate) fn figure(error: f64) -> String {
    match error {
        0.0 => "0".into(),
        error if error.is_finite() => format!("{error:.1e}"),
        error => error.to_string(),
    }
}

/// Formats an error figure, or a placeholder if it was not measured.
fn measured(error: Option<f64>) -> String {
    error.map_or(NOTHING.into(), figure)
}

/// Formats a bound ratio, such as "0.42" or "3.1e2".
pub fn bound_ratio(bound_ratio: Option<f64>) -> String {
    match bound_ratio {
        None => NOTHING.into(),
        Some(0.0) => "0".into(),
        Some(ratio) if ratio < 0.01 => "<0.01".into(),
        Some(ratio) if ratio < 10.0 => format!("{ratio:.2}"),
        Some(ratio) => figure(ratio),
    }
}

/// Formats a cosine with its distance from 1, such as "1-3e-8" or "0.9312". "1" means that no difference is
/// measurable.
pub(crate) fn cosine(cosine: f64) -> String {
    match 1.0 - cosine {
        gap if gap <= 0.0 => "1".into(),
        gap if gap < 0.01 => format!("1-{gap:.0e}"),
        _ if cosine.is_nan() => "NaN".into(),
        _ => format!("{cosine:.3}"),
    }
}

/// Formats the number of violations.
pub(crate) fn over(count: Option<usize>) -> String {
    match count {
        None => NOTHING.into(),
        Some(count) if count < 100_000 => count.to_string(),
        Some(count) => figure(count as f64),
    }
}

/// Formats a tolerance with all given digits.
pub(crate) fn bound(tolerance: f64) -> String {
    if tolerance == 0.0 { "0".into() } else { format!("{tolerance:e}") }
}

/// Formats a tolerance for a narrow column.
pub(crate) fn short_bound(tolerance: f64) -> String {
    let exact = bound(tolerance);
    if exact.len() <= "1.2e-10".len() { exact } else { figure(tolerance) }
}

/// Formats a compared value with enough digits to distinguish it from the neighbouring numbers of its type.
pub(crate) fn value(number: f64) -> String {
    let plain = number == 0.0 || (1e-4..1e7).contains(&number.abs()) || !number.is_finite();
    let single = number as f32;
    match (f64::from(single) == number, plain) {
        (true, true) => single.to_string(),
        (true, false) => format!("{single:e}"),
        (false, true) => number.to_string(),
        (false, false) => format!("{number:e}"),
    }
}

/// Formats a site in few characters, such as "attn_norm L2 p0". The tap's name is cut to fit `width`.
pub(crate) fn short_place(site: Site, width: usize) -> String {
    let mut place = String::new();
    if let Some(layer) = site.layer {
        place += &format!(" L{layer}");
    }
    if let Some(pass) = site.pass {
        place += &format!(" p{pass}");
    }
    fit(&(fit(site.point.name(), width.saturating_sub(place.len())) + &place), width)
}

/// Returns a heading such as "first divergence from llama.cpp-q8_0", or for a candidate "first divergence of
/// my-engine".
pub(crate) fn heading(outcome: &Outcome, name: &str) -> String {
    match outcome.subject.role {
        Role::Reference => format!("first divergence from {name}"),
        Role::Candidate => format!("first divergence of {name}"),
    }
}

/// Formats the site of a row, such as "v, layer 2, pass 0 (positions 0-5)".
pub(crate) fn site(row: &SiteResult) -> String {
    let positions = &row.positions;
    match (row.site.pass, positions.len()) {
        (None, _) | (_, 0) => row.site.to_string(),
        (_, 1) => format!("{} (position {})", row.site, positions.start),
        _ => format!("{} (positions {}-{})", row.site, positions.start, positions.end - 1),
    }
}

/// Formats the site and index of a row's worst value, such as "v, layer 2, pass 0 (positions 0-5), index [3,
/// 17]". The index is omitted for a single value.
pub(crate) fn place(row: &SiteResult) -> String {
    let worst = row.judged().and_then(|found| found.worst.as_ref());
    match worst.filter(|worst| !worst.index.is_empty()) {
        Some(worst) => format!("{}, index {:?}", site(row), worst.index),
        None => site(row),
    }
}

/// Describes the failure of a row: its error and the inputs of the operation, or otherwise the reason.
pub(crate) fn fault(row: &SiteResult) -> String {
    let errors = row.judged().map(|found| found.errors);
    let [error, largest] = errors.map_or([f64::NAN; 2], |errors| [errors.past_neighbour, errors.max_abs]);
    let fails = row.verdict == Verdict::Fail;
    let exceeds = error.is_finite() && error > row.tolerance.max_abs && fails;
    let reason = row.reason.clone().unwrap_or_default();
    match row.site.point.kind() {
        ValueKind::Real if fails && largest.is_finite() && !row.is_gated_by_tolerance() => {
            format!("{largest:.2e} at most, {}", origin(row))
        }
        ValueKind::Real if exceeds => format!("{error:.2e} at most, {}", origin(row)),
        ValueKind::Real if fails && row.floor.is_some() => {
            format!("{largest:.2e} at most, {}: {reason}", origin(row))
        }
        ValueKind::Token if exceeds && row.site.point != Point::Tokens => "a different token".into(),
        _ => reason,
    }
}

/// Describes the exact value of a failing row, or the noise floor if that decides, with a label. Empty if
/// neither decides.
pub(crate) fn exactly(row: &SiteResult) -> (&'static str, String) {
    let is_evaluated = row.explained.is_some() && !row.is_in_doubt() && !row.is_judged_by_accumulated();
    let name = if is_evaluated { "exactly" } else { "rounding" };
    match row.is_gated_by_tolerance() || row.bound_ratio().is_none() {
        true => (name, String::new()),
        false => (name, row.reason.clone().unwrap_or_default()),
    }
}

/// Returns the label of a tolerance: one that decides the verdict, or one of a specification.
pub(crate) fn bound_name(row: &SiteResult) -> &'static str {
    if row.is_gated_by_tolerance() { "allowed" } else { "specified" }
}

/// Describes the inputs from which the judged error was computed.
fn origin(row: &SiteResult) -> String {
    match row.is_judged_by_accumulated() {
        false => format!("local error since {}", since(row)),
        true => "accumulated error since the tokens".to_owned(),
    }
}

/// Returns the row's site and reason.
pub fn told(row: &SiteResult) -> String {
    format!("{}: {}", site(row), row.reason.as_deref().unwrap_or(row.verdict.name()))
}

/// Returns the reason of a waiver and the failure.
pub(crate) fn excused(row: &SiteResult) -> String {
    let said = row.known.as_ref();
    said.map_or_else(String::new, |Waiver { reason, link, expires }| {
        format!("{reason} ({link}, until {expires}); {}", told(row))
    })
}

/// Formats the sites that a row was computed from, such as "attn_norm", "k_rope, v" or "block_out of layer
/// 2".
pub(crate) fn since(row: &SiteResult) -> String {
    let start = |start: &Site| match start.layer.filter(|_| start.layer != row.site.layer) {
        Some(layer) => format!("{} of layer {layer}", start.point),
        None => start.point.to_string(),
    };
    match row.since.as_slice() {
        [] if matches!(row.site.point, Point::Module(_)) => "the recorded modules before it".to_owned(),
        [] => "the tokens".to_owned(),
        starts => starts.iter().map(start).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the explanation of a failure with its label. The site is omitted if it equals `told`.
pub(crate) fn finding(finding: &Finding, told: Site) -> (&'static str, String) {
    let name = if finding.kind.is_cause() { "cause" } else { "unclear" };
    match finding.site == told {
        true => (name, finding.what.clone()),
        false => (name, format!("{}: {}", finding.site, finding.what)),
    }
}

/// Formats a tolerance with its source, such as "1e-4 (Llama-2 specification, checkpoint 2)" or "1e-3, mean
/// 1e-4, cosine at least 0.99 (BitNet specification)".
pub(crate) fn allowed(row: &SiteResult) -> String {
    let Tolerance { max_abs, mean_abs, min_cosine, source, .. } = &row.tolerance;
    let mean = mean_abs.map(|mean| format!(", mean {}", bound(mean))).unwrap_or_default();
    let cosine = min_cosine.map(|cosine| format!(", cosine at least {cosine}")).unwrap_or_default();
    format!("{}{mean}{cosine} ({source})", bound(*max_abs))
}

/// Formats the largest error of a checkpoint. Token ids are shown as equal or different.
pub(crate) fn largest(shown: &CheckpointSummary, errors: Option<Errors>) -> String {
    match errors {
        Some(errors) if shown.is_of_tokens() && errors.max_abs != 0.0 => "differs".into(),
        _ => measured(errors.map(|errors| errors.max_abs)),
    }
}

/// Formats the mean error and the cosine of a checkpoint; empty for token ids.
pub(crate) fn mean_and_cosine(shown: &CheckpointSummary) -> [String; 2] {
    match shown.errors().filter(|_| !shown.is_of_tokens()) {
        Some(errors) => [figure(errors.mean_abs), cosine(errors.cosine)],
        None => [NOTHING; 2].map(str::to_owned),
    }
}

/// Formats the producer and its version, such as "llama.cpp b1234".
pub(crate) fn producer(outcome: &Outcome) -> String {
    let producer = &outcome.subject.producer;
    clean(format!("{} {}", producer.name, producer.version).trim_end())
}

/// Returns the first undetermined row, in data-flow order.
pub(crate) fn in_doubt(outcome: &Outcome) -> Option<&SiteResult> {
    outcome.rows.iter().find(|row| row.verdict == Verdict::Inconclusive)
}

/// Returns the phrase for taps without a failure.
pub(crate) fn fine(outcome: &Outcome) -> &'static str {
    match outcome.subject.gate {
        Gate::Rounding => "explained by rounding",
        Gate::Tolerance => "within tolerance",
    }
}

/// Describes the coverage, such as "2 of 5 taps explained by rounding, 1 undetermined, 2 not compared".
pub(crate) fn covered(outcome: &Outcome) -> String {
    let [doubtful, known] = [Verdict::Inconclusive, Verdict::Known].map(|verdict| outcome.count(verdict));
    let good = outcome.rows.len() - doubtful - known - outcome.count(Verdict::Fail);
    let missing = outcome.coverage.taps_expected.saturating_sub(outcome.rows.len());
    let all = count(outcome.rows.len() + missing, "tap");
    let more = [(known, "waived"), (doubtful, "undetermined"), (missing, "not compared")];
    let more =
        more.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!(", {number} {what}"));
    format!("{good} of {all} {}{}", fine(outcome), more.collect::<String>())
}

/// Returns a suffix such as "; 1 of 24 rows of 48 taps", for a dump without all rows.
pub(crate) fn in_part(coverage: &Coverage) -> String {
    let Coverage { taps_in_part, rows, rows_expected, .. } = coverage;
    match taps_in_part {
        0 => String::new(),
        taps => format!("; {rows} of {rows_expected} rows recorded, some missing in {}", count(*taps, "tap")),
    }
}

/// Formats the share of identical values, such as "410 taps bit-identical, 99.98 % of the values". The share
/// is rounded down, so 100 % means all values.
pub(crate) fn identical(coverage: &Coverage) -> String {
    let taps = count(coverage.taps_identical, "tap");
    let hundredths = coverage.elements_identical * 10_000 / coverage.elements.max(1);
    let share = match hundredths {
        10_000 => "100".to_owned(),
        hundredths => format!("{}.{:02}", hundredths / 100, hundredths % 100),
    };
    format!("{taps} bit-identical, {share} % of the values")
}

/// Formats a count with its noun, such as "1 tap" or "2 taps".
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Replaces control characters in text from a dump or a file, so that it is safe for a terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if commands(c) { ' ' } else { c }).collect()
}

/// Returns the number of terminal columns of a text.
pub fn width(text: &str) -> usize {
    display_width(text)
}

/// Wraps text to `width` columns. The first line starts with `head`, and the others are indented to match.
/// Paths are not broken.
pub fn wrap(head: &str, text: &str, width: usize) -> Vec<String> {
    let indent = " ".repeat(display_width(head));
    let options = textwrap::Options::new(width)
        .initial_indent(head)
        .subsequent_indent(&indent)
        // Paths are not broken, so that they can be copied.
        .break_words(!text.contains('/'))
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(&clean(text), options).into_iter().map(Into::into).collect()
}

/// Cuts text to `width` columns, with an ellipsis if it is too long.
pub fn fit(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if display_width(&kept) >= width {
            kept.pop();
            break;
        }
    }
    kept + "…"
}
