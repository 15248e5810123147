//! First lines of a terminal report: one sentence that says what is wrong, where it is, and how to confirm
//! it.

use std::collections::BTreeSet;

use crate::change::CauseKind;
use crate::check::Role;
use crate::checkpoint::{Point, Site};
use crate::report::terminal_style::TerminalStyle;
use crate::report::text::{self, WIDTH, clean, count, fit};
use crate::report::{Comparison, Report, advice};
use crate::verdict::{Finding, Outcome, SiteResult, Verdict, changes_of};

/// The predicate of a sentence about a cause.
enum Predicate {
    /// A setting with a wrong value.
    Setting(&'static str),
    /// A wrong action of the engine.
    Act(&'static str),
}

/// Returns the lines before the table. `page` is the path of `report.html`, if it is written.
pub(crate) fn lines(report: &Report, page: Option<&str>, paint: TerminalStyle) -> Vec<String> {
    let mut bad: Vec<&Comparison> =
        report.results.iter().filter(|result| !result.outcome.verdict.is_good()).collect();
    bad.sort_by_key(|result| std::cmp::Reverse(result.outcome.verdict));
    let mut lines: Vec<String> = bad.first().map(|result| told(result, page, paint)).unwrap_or_default();
    if bad.len() > 1 {
        lines.push(format!("{MARGIN}{} more below", count(bad.len() - 1, "dump")));
    }
    if bad.is_empty() && !report.results.is_empty() {
        let verdict = report.verdict();
        let dumps = count(report.results.len(), "dump");
        let line = match of_no_dump(report) {
            Some(reason) => format!("{}  {reason}.", word(verdict)),
            None => format!("{}  {dumps}: {}.", word(verdict), of_a_pass(report)),
        };
        lines.extend(painted(text::wrap("", &line, WIDTH), verdict, paint));
    }
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

/// Returns the reason for the verdict if it concerns no single dump: nothing that tests the model was
/// compared, or the server's own checks failed.
pub(crate) fn of_no_dump(report: &Report) -> Option<String> {
    let of_server = || {
        let served = report.served.as_ref()?;
        let check = served.worst()?;
        Some(format!("{}: {}: {}", clean(&served.url), clean(&check.check), clean(&check.found)))
    };
    report.reason().map(str::to_owned).or_else(of_server)
}

const MARGIN: &str = "      ";

fn word(verdict: Verdict) -> String {
    verdict.name().to_uppercase()
}

fn painted(mut lines: Vec<String>, verdict: Verdict, paint: TerminalStyle) -> Vec<String> {
    if let Some(first) = lines.first_mut() {
        let name = word(verdict);
        *first = first.replacen(&name, &paint.verdict(verdict, &name), 1);
    }
    lines
}

fn of_a_pass(report: &Report) -> String {
    let outcomes = || report.results.iter().map(|result| &result.outcome);
    let fine = outcomes().next().map_or("", text::fine);
    let known: usize = outcomes().map(|outcome| outcome.count(Verdict::Known)).sum();
    let taps: usize = outcomes().map(|outcome| outcome.coverage.taps_compared).sum();
    let known = if known > 0 { format!(", {} waived", count(known, "failure")) } else { String::new() };
    format!("{} {fine}{known}", count(taps, "tap"))
}

/// Returns the lines about one dump: its sentence, the cause with the command that confirms it, and the path
/// of the page.
fn told(result: &Comparison, page: Option<&str>, paint: TerminalStyle) -> Vec<String> {
    let outcome = &result.outcome;
    let head = format!("{}  ", word(outcome.verdict));
    let mut lines = painted(text::wrap(&head, &sentence(outcome), WIDTH), outcome.verdict, paint);
    let margin = " ".repeat(head.len().min(MARGIN.len()));
    let causes = leading_causes(outcome);
    for cause in &causes {
        let what = cause.what.split("; ").next().unwrap_or_default();
        let extent = extent(outcome, &cause.points, &cause.sites);
        // A change that is restricted to some passes names them itself.
        let known = extent.rsplit_once(", ").filter(|(_, passes)| what.ends_with(passes));
        let extent = known.map_or(extent.as_str(), |(layers, _)| layers);
        lines.extend(text::wrap(&margin, &format!("{what}; {extent}"), WIDTH));
    }
    if let Some(cause) = causes.first() {
        let verdict = cause.confirmed.map(|verdict| format!("   ({verdict})")).unwrap_or_default();
        let command = confirm_command(result, cause);
        lines.extend(command.map(|command| format!("{margin}confirm:  {command}{verdict}")));
    }
    lines.extend(page.map(|page| format!("{margin}report:   {page}")));
    lines
}

/// Returns the causes to name first: those that a run has confirmed together, or otherwise the first cause.
/// Empty if a run has refuted it.
fn leading_causes(outcome: &Outcome) -> Vec<&Finding> {
    if outcome.verdict != Verdict::Fail {
        return Vec::new();
    }
    let confirmed = outcome.confirmed_causes();
    let first = || outcome.cause().filter(|cause| !is_refuted(cause));
    if confirmed.is_empty() { first().into_iter().collect() } else { confirmed }
}

/// Returns one sentence about a dump that does not pass: its faults, or why it could not be judged.
pub(crate) fn sentence(outcome: &Outcome) -> String {
    let mut causes = leading_causes(outcome);
    causes.retain(|cause| is_asserted(cause));
    match (outcome.verdict, outcome.first_divergence()) {
        (Verdict::Fail, _) if !causes.is_empty() => of_causes(outcome, &causes),
        (Verdict::Fail, Some(row)) => of_row(outcome, row, outcome.cause()),
        _ => format!("{}: {}", name(outcome), outcome.reason.clone().unwrap_or_default()),
    }
}

/// Returns true if a run with the supposed cause left failures unexplained.
fn is_refuted(cause: &Finding) -> bool {
    cause.confirmed == Some(Verdict::Fail)
}

/// Returns true if a run has confirmed the cause, or if `--suppose` cannot express it. Shards and streams are not
/// run again, so their causes are not asserted.
fn is_asserted(cause: &Finding) -> bool {
    cause.supposed.is_none() || cause.confirmed.is_some_and(Verdict::is_good)
}

/// Returns the name of the dump, which the sentence uses as the name of the engine.
fn name(outcome: &Outcome) -> String {
    fit(&clean(&outcome.subject.name), WIDTH / 2)
}

fn of_causes(outcome: &Outcome, causes: &[&Finding]) -> String {
    let is_judged = outcome.subject.role == Role::Candidate;
    let act = |cause: &&Finding| match predicate(cause.kind) {
        Predicate::Setting(what) if is_judged => format!("computes with the wrong {what}"),
        Predicate::Setting(what) => format!("computes with another {what} than our engine"),
        Predicate::Act(act) => act.to_owned(),
    };
    let mut acts: Vec<String> = causes.iter().map(act).collect();
    acts.dedup();
    let compared = if is_judged { "" } else { ", compared with our engine," };
    format!("{}{compared} {}.", name(outcome), acts.join(", and "))
}

fn of_row(outcome: &Outcome, row: &SiteResult, guess: Option<&Finding>) -> String {
    let before = outcome.before_divergence().len();
    let before = match before {
        0 => "no earlier tap is recorded".to_owned(),
        taps => {
            format!("the {} before it {} correct", count(taps, "tap"), if taps == 1 { "is" } else { "are" })
        }
    };
    let none = if outcome.is_search_unfinished() {
        "The search for causes reached its time limit."
    } else {
        "No known cause explains it."
    };
    let cause = guess.map_or(none.to_owned(), |guess| {
        let supposed = guess.supposed.as_deref().unwrap_or(guess.kind.name());
        match guess.sites.first().filter(|_| !guess.sites.contains(&row.site)) {
            Some(site) => format!("{none} {supposed} explains {site}."),
            None if is_refuted(guess) => {
                format!("The nearest known cause, {supposed}, explains only some of the failures.")
            }
            None => format!("The likely cause, {supposed}, has not been confirmed by a run."),
        }
    });
    format!("{}: {} is the first wrong value; {before}. {cause}", name(outcome), text::site(row))
}

/// Describes the layers and passes of wrong sites among all compared sites of these taps, such as "wrong in
/// all 3 layers, prompt and decode".
pub(crate) fn extent(outcome: &Outcome, points: &[Point], sites: &[Site]) -> String {
    let of_taps = || outcome.rows.iter().map(|row| row.site).filter(|site| points.contains(&site.point));
    let layers = |sites: &mut dyn Iterator<Item = Site>| -> BTreeSet<usize> {
        sites.filter_map(|site| site.layer).collect()
    };
    let (wrong, all) = (layers(&mut sites.iter().copied()), layers(&mut of_taps()));
    let layers = match wrong.len() {
        0 => String::new(),
        1 => format!(" in layer {}", wrong.first().copied().unwrap_or_default()),
        several if several == all.len() => format!(" in all {several} layers"),
        several => format!(" in {several} of {} layers", all.len()),
    };
    let is_decode = |site: &Site| site.pass.is_some_and(|pass| pass > 0);
    let has = |sites: &mut dyn Iterator<Item = Site>| {
        let sites: Vec<_> = sites.filter(|site| site.pass.is_some()).collect();
        [sites.iter().any(|site| !is_decode(site)), sites.iter().any(is_decode)]
    };
    let passes = match (has(&mut sites.iter().copied()), has(&mut of_taps())) {
        ([true, true], _) => ", prompt and decode",
        ([false, true], [true, _]) => ", only while decoding",
        ([true, false], [_, true]) => ", only in the prompt",
        ([true, false], _) => ", in the prompt",
        ([false, true], _) => ", while decoding",
        _ => "",
    };
    format!("wrong{layers}{passes}")
}

/// Returns the command that judges again with a supposed cause, if `--suppose` can express the cause.
pub(crate) fn confirm_command(result: &Comparison, finding: &Finding) -> Option<String> {
    let cause = Some(finding).filter(|finding| finding.kind.is_cause())?;
    let confirmed = || result.outcome.confirmed_causes();
    // Causes that one run confirmed together are supposed together.
    let mut together =
        finding.confirmed.filter(|verdict| verdict.is_good()).map_or(Vec::new(), |_| confirmed());
    if together.is_empty() {
        together.push(cause);
    }
    let supposed =
        changes_of(together)?.into_iter().flat_map(|change| ["--suppose".to_owned(), change.to_owned()]);
    let command: Vec<String> = result.again.iter().cloned().chain(supposed).collect();
    Some(advice::shell(&command))
}

fn predicate(kind: CauseKind) -> Predicate {
    use CauseKind::*;
    use Predicate::{Act, Setting};
    match kind {
        TokensBos => Act("begins the sequence with another token, or without one"),
        TokensPrompt => Act("reads other tokens than the prompt's"),
        EmbedScale => Setting("embedding scale"),
        PositionEmbedding => Act("adds the embedding of another position"),
        NormKind => Setting("kind of norm"),
        NormEps => Setting("norm epsilon"),
        NormVariance => Act("computes the variance of a norm differently"),
        NormWeightOffset => Setting("norm weight offset"),
        NormWeightOrder => Act("rounds a norm at another place"),
        NormWeights => Act("uses the weights of another norm"),
        NormMissing => Act("leaves out a norm"),
        NormScope => Act("normalises over other values"),
        NormOrder => Act("applies a norm before an operation instead of after it, or the reverse"),
        RopePairing => Act("rotates other pairs of values"),
        RopeTheta => Setting("RoPE base"),
        RopeScaling => Setting("RoPE scaling"),
        RopePosition => Setting("RoPE position"),
        RopeDirection => Act("rotates in the other direction"),
        RopeMissing => Act("leaves out RoPE"),
        RopeLayers => Act("applies RoPE in a layer without it"),
        RopeOnV => Act("rotates values, too"),
        RopeFrequencies => Act("rotates some pairs with other RoPE frequencies"),
        RopeWidth => Act("rotates another part of each head"),
        RopePrecision => Setting("precision of RoPE"),
        QkPermutation => Act("permutes the rows of q and k"),
        QkvSwap => Act("exchanges q, k and v projections"),
        FusedOrder => Act("splits a fused projection in another order"),
        GqaMapping => Act("maps query heads to other key-value heads"),
        HeadOrder => Act("has heads in another order"),
        RouterScale => Setting("factor of the router's input"),
        LayerScale => Setting("factor of a layer's output"),
        QueryTemperature => Setting("temperature of queries"),
        AttnScale => Setting("attention scale"),
        Softcap => Setting("soft cap"),
        MaskCausal => Act("has a wrong causal mask"),
        MaskWindow => Setting("sliding window"),
        Alibi => Setting("slopes of ALiBi"),
        SoftmaxSum => Act("counts keys in softmax's sum that attention does not use"),
        AttnMerge => Act("merges attention over cached and new keys with wrong shares"),
        MaskSequences => Act("lets a query see keys of another sequence or of padding"),
        SoftmaxAxis => Act("takes softmax along another axis"),
        SoftmaxPrecision => Setting("softmax precision"),
        CacheStale => Act("reads stale rows of the KV cache"),
        CachePosition => Act("writes KV cache rows at wrong positions"),
        CacheRotation => Act("computes attention with keys in a wrong rotation"),
        CacheRow => Act("has wrong rows in the KV cache"),
        RowSource => Act("has rows of another position, pass or sequence in a tap"),
        CacheScale => Act("does not undo a scale of the KV cache"),
        Activation => Setting("activation function"),
        ActivationSparsity => Setting("sparsity of the gate"),
        AttnGate => Act("computes the output gate of attention differently"),
        LinearBeta => Act("computes β of the delta rule differently"),
        LinearDecay => Act("decays the state of linear attention differently"),
        DeltaRule => Act("computes a step of the gated delta rule differently"),
        StepSize => Act("computes the step sizes of a recurrence differently"),
        StateDecay => Act("decays the recurrent state differently"),
        StateGroups => Act("reads B and C of another group of heads"),
        StateSkip => Act("computes the skip connection of a recurrence differently"),
        StateKept => Act("does not keep the recurrent state between passes"),
        GatedNorm => Act("gates a norm differently"),
        ConvKernel => Act("applies the kernel of a short convolution in another order"),
        ConvState => Act("does not keep the inputs of a short convolution between passes"),
        ConvBias => Act("omits a convolution's bias or adds it twice"),
        ConvGate => Act("gates a short convolution differently"),
        ExpertCount => Setting("number of experts per token"),
        SharedExpert => Act("leaves out the shared expert, or its weight"),
        ExpertScores => Act("chooses experts by other scores"),
        ExpertGroups => Act("chooses experts from other groups"),
        ExpertWeights => Act("weights experts differently"),
        ExpertOrder => Act("uses experts in another order"),
        GateUpSwap => Act("exchanges gate and up"),
        ResidualMissing => Act("leaves out a residual connection"),
        LowRankResidual => Act("computes the low-rank residual (LAuReL) differently"),
        AltupRouter => Act("computes the router of AltUp differently"),
        AltupPrediction => Act("predicts AltUp's streams differently"),
        AltupCorrection => Act("corrects AltUp's streams differently"),
        AltupScale => Act("leaves out the factors of AltUp's active stream"),
        AltupMagnitude => Act("projects or averages AltUp's streams differently"),
        LayerStreams => Act("adds a layer's embeddings to other streams of AltUp"),
        ResidualScale => Setting("residual scale"),
        LayerOrder => Act("uses the weights of another layer"),
        LayerMissing => Act("leaves out a layer"),
        LayerPattern => Setting("pattern of sliding layers"),
        WeightTransposed => Act("transposes a matrix"),
        WeightMissing => Act("has a weight that was not loaded"),
        WeightCorruption => Act("has corrupted elements in a weight"),
        WeightPrecision => Act("rounds a weight to a shorter type"),
        WeightScale => Act("scales a weight"),
        WeightLayout => Act("decodes quantised blocks differently"),
        BiasMissing => Act("leaves out a bias"),
        BiasScale => Act("adds a wrong multiple of a bias"),
        PartialSum => Act("leaves out or repeats columns of a product"),
        WeightShards => Act("exchanges or repeats shards of a weight"),
        WeightLowRank => Act("applies an additional adapter (LoRA), or leaves one out"),
        WeightGroups => Act("reads scales or zero points of quantised weights differently"),
        SplitK => Act("rounds partial sums of a product to a short type"),
        ActivationQuant => Setting("quantisation of activations"),
        InputScale => Act("quantises activations with other scales than the file states"),
        PreQuantScale => Act("applies the factors of a product's inputs differently"),
        LmHead => Setting("output matrix"),
        LogitScale => Setting("logit scale"),
        RepetitionPenalty | PresencePenalty | FrequencyPenalty => Act("lowers logits of tokens already read"),
        LogitsRow => Act("samples from another row of logits"),
        Probs => Act("computes probabilities differently"),
        Logprobs => Act("reports other log-probabilities"),
        Sampling => Act("chooses tokens differently"),
        SamplingTie => Act("breaks ties between tokens differently"),
        NonFinite => Act("computes NaN or infinity"),
        Arithmetic => Act("rounds in other operations"),
        ModelCode => Act("computes a module differently"),
        DumpAxes => Act("stores axes in another order than declared"),
        DumpTap => Act("records a value under the name of another tap"),
        DumpLayers => Act("numbers the layers of its dump differently"),
        DumpStorage => Act("stored the values of its dump in a shorter type"),
        Partial | Unknown | Unfinished => Act("computes other values"),
    }
}
