//! Search for the arithmetic of a dump's engine: as stated, as shown by its values, or as in a common engine.

use std::collections::BTreeSet;

use crate::catalogue::Supposition;
use crate::check::{EngineRounding, Role, Rules};
use crate::cli::comparison::ComparisonContext;
use crate::cli::named_dump::NamedDump;
use crate::cli::numerics::short_caches;
use crate::cli::progress::RunProgress;
use crate::cli::unstated_properties::{
    cache_of_rows, contradiction_of_dtype, dtype_of_values, holds_results_alone,
};
use crate::cli::unstated_quantisation::{
    about_integers, about_unquantised_activations, about_unrecorded_codes, check_powers, common_products,
    says_nothing_of_products, stated_products, with_integers, without_file_codes,
};
use crate::diagnose::cross_check;
use crate::dump::Producer;
use crate::error::Result;
use crate::exact::Profile;
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::ops::linear::exact::IntegerProducts;
use crate::verdict::{Finding, Outcome, SiteResult, Verdict, changes_of};

/// A possible arithmetic of the dump's engine: stated in the manifest, or inferred from the values.
struct EngineArithmetic {
    producer: Producer,
    choices: Vec<Box<dyn Numerics>>,
    is_stated: bool,
    /// Rounding profile that the values show, if it was inferred from them.
    shown: Option<Profile>,
    /// Note to show if this arithmetic is used.
    note: Option<String>,
    /// Reason why this arithmetic cannot lead to a pass, because the dump's values contradict it.
    contradiction: Option<String>,
    /// True if neither the manifest nor the stored types suggest this arithmetic.
    is_guess: bool,
}

impl EngineArithmetic {
    /// Creates a stated arithmetic that nothing contradicts.
    fn new(producer: Producer, choices: Vec<Box<dyn Numerics>>) -> Self {
        let (shown, note, contradiction) = (None, None, None);
        Self { producer, choices, is_stated: true, shown, note, contradiction, is_guess: false }
    }
}

impl ComparisonContext<'_> {
    /// Returns the outcome for the stated numerics, or otherwise for the numerics that explain the dump best. Causes
    /// are searched only with these numerics, and only if `seeks_causes` is true.
    pub(super) fn outcome(
        &self,
        named: &NamedDump,
        role: Role,
        loaded: &LoadedModel,
        seeks_causes: bool,
    ) -> Result<Outcome> {
        let ways = self.ways(named, loaded)?;
        let is_alone = ways.iter().map(|way| way.choices.len()).sum::<usize>() == 1;
        let own = self.options.suppositions();
        let by = |way: &EngineArithmetic, numerics: &dyn Numerics, causes: bool| {
            self.supposing(&own, way, numerics, causes && seeks_causes, named, role, loaded)
        };
        let (mut outcome, mut way, mut numerics) =
            best_way(&ways, |way, numerics| by(way, numerics, is_alone))?;
        let of_integers = self.ways_of_integers(&outcome, way, named, loaded);
        let mut is_alone = is_alone;
        for other in &of_integers {
            let found = by(other, &*other.choices[0], false)?;
            // An arithmetic that no product shows is accepted only if it explains everything.
            let is_shown = outcome.integers().is_some() || found.verdict == Verdict::Pass;
            if is_shown && wrong(&found) < wrong(&outcome) {
                (outcome, way, numerics, is_alone) = (found, other, &*other.choices[0], false);
            }
            if outcome.verdict == Verdict::Pass {
                break;
            }
        }
        // The first arithmetic is stated by the dump, or shown by values that contradict the dump. Any other
        // is a guess that the values must confirm.
        let said = (&ways[0], &*ways[0].choices[0]);
        let is_guess = way.is_guess || !way.is_stated && numerics.name() != said.1.name();
        let mut undecided = None;
        if is_guess && outcome.verdict == Verdict::Pass {
            let by_said = by(said.0, said.1, false)?;
            match (outcome.is_nearer_than(&by_said), way.is_guess) {
                (true, _) => {}
                (false, true) => (outcome, way, numerics, is_alone) = (by_said, said.0, said.1, false),
                (false, false) => undecided = Some(undecided_between(numerics.name(), said.1.name())),
            }
        }
        if outcome.verdict != Verdict::Pass && !is_alone && seeks_causes {
            outcome = by(way, numerics, true)?;
        }
        let uncertain = self.uncertain_codes(&outcome, way, &by, loaded)?;
        let note = way.note.clone().filter(|_| uncertain.is_none());
        outcome.lack(undecided.as_slice());
        outcome.lack(uncertain.as_slice());
        if let Some(doubt) = self.doubt_of_caches(&outcome, way, named, &by, loaded)? {
            outcome.doubt(&doubt);
        }
        self.confirm_causes(&mut outcome, |supposed| {
            self.supposing(supposed, way, numerics, false, named, role, loaded)
        });
        if !way.is_stated {
            let names: Vec<_> = way.choices.iter().map(|numerics| numerics.name()).collect();
            outcome.notes.push(about_arithmetic(&way.producer, &names, &outcome.subject.numerics));
        }
        if numerics.cache_noise() > 0.0 {
            outcome.notes.push(ABOUT_SCALES.to_owned());
        }
        outcome.notes.extend(note);
        let about = about_unquantised_activations(&*loaded.model, &way.producer);
        outcome.notes.extend(about.filter(|_| outcome.verdict.is_good()));
        if let Some(why) = way.contradiction.clone().filter(|_| outcome.verdict == Verdict::Pass) {
            outcome.lack(&[why]);
        }
        Ok(outcome)
    }

    /// Returns the possible arithmetics: stated by the dump, shown by its values, or suggested by the format
    /// of the model file.
    fn ways(&self, named: &NamedDump, loaded: &LoadedModel) -> Result<Vec<EngineArithmetic>> {
        let options = &self.options.numerics;
        let way = |producer: Producer, shown, note| -> Result<EngineArithmetic> {
            let (choices, is_stated) = options.of_dump(&*loaded.model, &producer)?;
            Ok(EngineArithmetic { is_stated, shown, note, ..EngineArithmetic::new(producer, choices) })
        };
        let producer = &named.dump.manifest.producer;
        check_powers(&*loaded.model, producer)?;
        let mut said = way(producer.clone(), None, None)?;
        let is_open = !options.is_named();
        let contradiction = contradiction_of_dtype(&named.dump).filter(|_| is_open);
        said.contradiction = contradiction.as_ref().map(|shown| {
            format!(
                "{}, but its rounding does not explain the values; if the engine computes only the logits in a \
                    longer type, record block_out too",
                shown.note
            )
        });
        let of_values = dtype_of_values(&named.dump).filter(|_| is_open);
        let shown = contradiction.into_iter().chain(cache_of_rows(&named.dump)).chain(of_values);
        let shown = shown.filter_map(|shown| way(shown.producer, shown.rounding, Some(shown.note)).ok());
        let mut ways: Vec<EngineArithmetic> = [said].into_iter().chain(shown).collect();
        // An arithmetic that the values contradict is tried last.
        if ways[0].contradiction.is_some() {
            ways.rotate_left(1);
        }
        if loaded.format == "gguf" {
            let choices = options.of_gguf(&*loaded.model, producer)?;
            let note = "the dump does not state its arithmetic; its values match the arithmetic of llama.cpp";
            let note = Some(note.to_owned());
            let suggested =
                EngineArithmetic { note, is_guess: true, ..EngineArithmetic::new(producer.clone(), choices) };
            ways.extend(Some(suggested).filter(|way| !way.choices.is_empty()));
        }
        Ok(ways)
    }

    /// Returns a reason for doubt if only logits fail, and a KV cache type that the dump does not state would explain
    /// them.
    fn doubt_of_caches(
        &self,
        outcome: &Outcome,
        said: &EngineArithmetic,
        named: &NamedDump,
        by: &impl Fn(&EngineArithmetic, &dyn Numerics, bool) -> Result<Outcome>,
        loaded: &LoadedModel,
    ) -> Result<Option<String>> {
        // A named cause explains more than a cache type.
        let is_asked =
            outcome.verdict == Verdict::Fail && outcome.cause().is_none() && !self.has_named_arithmetic();
        let says_cache = said.producer.setting("kv_cache").is_some();
        if !is_asked || says_cache {
            return Ok(None);
        }
        // With more taps, an 8-bit cache with unknown scales would explain too much.
        let tried = if holds_results_alone(&named.dump) { usize::MAX } else { FLOATS };
        for name in short_caches().take(tried) {
            let mut producer = said.producer.clone();
            producer.settings.insert("kv_cache".to_owned(), name.clone().into());
            let Ok((choices, is_stated)) = self.options.numerics.of_dump(&*loaded.model, &producer) else {
                continue;
            };
            let way = EngineArithmetic {
                is_stated,
                shown: said.shown,
                is_guess: true,
                ..EngineArithmetic::new(producer, choices)
            };
            let mut explains = false;
            for numerics in &way.choices {
                let found = by(&way, &**numerics, false)?;
                // An engine with such a cache has an error of about the cache's rounding error.
                let is_off = found
                    .rows
                    .iter()
                    .filter_map(SiteResult::bound_ratio)
                    .any(|bound_ratio| bound_ratio >= LEAST_OF_NOISE);
                let is_seen = match numerics.cache_noise() > 0.0 {
                    true => is_off,
                    false if tried == FLOATS => found.is_mostly_nearer_than(outcome),
                    false => found.is_nearer_than(outcome),
                };
                explains |= found.verdict == Verdict::Pass && is_seen;
            }
            if explains {
                return Ok(Some(format!(
                    "rounding explains the errors only if the KV cache is {name}, and the dump states no cache type; if it is \
                     {name}, state it in settings.kv_cache or pass --kv-cache {name}"
                )));
            }
        }
        Ok(None)
    }

    /// Returns a reason for doubt if a dump passes only because unrecorded codes of activations are uncertain.
    fn uncertain_codes(
        &self,
        outcome: &Outcome,
        way: &EngineArithmetic,
        by: &impl Fn(&EngineArithmetic, &dyn Numerics, bool) -> Result<Outcome>,
        loaded: &LoadedModel,
    ) -> Result<Option<String>> {
        let is_open = outcome.verdict.is_good() && !outcome.is_of_single_operations();
        let plain = without_file_codes(&way.producer).filter(|_| is_open);
        let Some(producer) = plain else { return Ok(None) };
        let (choices, is_stated) = self.options.numerics.of_dump(&*loaded.model, &producer)?;
        let shown = way.shown.map(|profile| Profile { activation_codes: None, ..profile });
        let plain = EngineArithmetic { is_stated, shown, ..EngineArithmetic::new(producer, choices) };
        let taps = outcome.taps_as_near_to(&by(&plain, &*plain.choices[0], false)?);
        Ok((!taps.is_empty()).then(|| about_unrecorded_codes(&taps)))
    }

    /// Returns the possible arithmetics with quantised activations: those that the products show. If the products show
    /// none, returns those that the model's file states. If no products were recorded either, returns those of common
    /// engines.
    fn ways_of_integers(
        &self,
        outcome: &Outcome,
        said: &EngineArithmetic,
        named: &NamedDump,
        loaded: &LoadedModel,
    ) -> Vec<EngineArithmetic> {
        if outcome.verdict == Verdict::Pass || self.has_named_arithmetic() {
            return Vec::new();
        }
        let profile = said.shown.or_else(|| Some(Profile::of(&**said.choices.first()?)));
        let stated = || stated_products(&*loaded.model, &said.producer, profile?.results);
        // The model's file states its codes, so they are no guess.
        let (products, is_guess) = match outcome.integers().map(|shown| vec![shown]).or_else(stated) {
            Some(products) => (products, false),
            None if says_nothing_of_products(&named.dump) => {
                (common_products(loaded.model.dimensions().vocab_size), true)
            }
            None => (Vec::new(), true),
        };
        let way = |products: IntegerProducts| {
            let producer = with_integers(&said.producer, products)?;
            let (choices, is_stated) = self.options.numerics.of_dump(&*loaded.model, &producer).ok()?;
            let known = said.shown.unwrap_or(Profile::of(&**choices.first()?));
            let shown = known.stated(producer.rounding.as_ref()?).ok()?;
            let note = Some(about_integers(&products));
            Some(EngineArithmetic {
                is_stated,
                shown: Some(shown),
                note,
                contradiction: said.contradiction.clone(),
                is_guess,
                ..EngineArithmetic::new(producer, choices)
            })
        };
        products.into_iter().filter_map(way).collect()
    }

    /// Runs the model with the first cause supposed, or with all causes if the first is not enough, and records whether
    /// this explains every failure. If neither does, supposes the causes only at their own taps and layers.
    fn confirm_causes(&self, outcome: &mut Outcome, by: impl Fn(&[Supposition]) -> Result<Outcome>) {
        let is_cause = |at: &usize| outcome.findings[*at].kind.is_cause();
        let causes: Vec<usize> = (0..outcome.findings.len()).filter(is_cause).collect();
        let Some(&first) = causes.first().filter(|_| outcome.verdict == Verdict::Fail) else { return };
        let own = self.options.suppositions();
        let verdict_of = |causes: &[usize], outcome: &Outcome| -> Option<Verdict> {
            let changes = changes_of(causes.iter().map(|&at| &outcome.findings[at]))?;
            let changes = changes.into_iter().map(Supposition::named).collect::<Result<Vec<_>, _>>().ok()?;
            let supposed: Vec<_> = own.iter().cloned().chain(changes).collect();
            // A change that does not apply to this model confirms nothing. It is not an error of the dump.
            Some(by(&supposed).ok()?.verdict)
        };
        let run = |outcome: &Outcome| -> Option<(Vec<usize>, Verdict)> {
            let alone = verdict_of(&[first], outcome);
            let together = Some(&causes).filter(|all| all.len() > 1 && !alone.is_some_and(Verdict::is_good));
            let together =
                together.and_then(|all| verdict_of(all, outcome)).filter(|verdict| verdict.is_good());
            let together = together.map(|verdict| (causes.clone(), verdict));
            together.or(alone.map(|verdict| (vec![first], verdict)))
        };
        let is_good = |(_, verdict): &(Vec<usize>, Verdict)| verdict.is_good();
        let mut confirmed = run(outcome);
        if let Some(narrowed) =
            with_narrowed_causes(outcome).filter(|_| !confirmed.as_ref().is_some_and(is_good))
            && let Some(by_narrowed) = run(&narrowed).filter(is_good)
        {
            for &at in &by_narrowed.0 {
                outcome.findings[at].supposed.clone_from(&narrowed.findings[at].supposed);
            }
            confirmed = Some(by_narrowed);
        }
        if let Some((causes, verdict)) = confirmed {
            outcome.confirm(&causes, verdict);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the closures that call it have three")]
    fn supposing(
        &self,
        suppositions: &[Supposition],
        way: &EngineArithmetic,
        numerics: &dyn Numerics,
        causes: bool,
        named: &NamedDump,
        role: Role,
        loaded: &LoadedModel,
    ) -> Result<Outcome> {
        // The arithmetic that is tried decides the table of tolerances, not the one that is stated.
        let said = self.rules(way.is_stated, &way.producer, role, loaded, suppositions);
        let rounding = match (said.rounding, way.shown) {
            (EngineRounding::Stated, Some(shown)) => EngineRounding::Shown(shown),
            (said, _) => said,
        };
        let budget = self.options.causes.budget();
        let rules = Rules { causes, rounding, budget: Some(&budget), ..said };
        let mut progress = RunProgress::new(&named.name, loaded.model.dimensions().n_layers)
            .along(named.dump.manifest.passes.iter().map(|pass| pass.tokens.len()));
        cross_check(&named.name, &*loaded.model, numerics, &named.dump, rules, &mut progress)
    }
}

/// Number of 16-bit cache types, f16 and bf16, whose rounding is known. They come first in the list.
const FLOATS: usize = 2;

/// Minimum bound ratio of logits for which a cache with unknown scales is a plausible explanation.
const LEAST_OF_NOISE: f64 = 0.1;

/// Note for a KV cache with unknown scales.
const ABOUT_SCALES: &str = "the scales of the KV cache are not recorded: the error bound covers rounding to \
    8 bits under any scale";

/// Returns the sort key of an outcome: the verdict, then the number of failing rows. The outcome with the smallest
/// key explains the dump best.
fn wrong(outcome: &Outcome) -> (Verdict, usize) {
    (outcome.verdict, outcome.count(Verdict::Fail))
}

/// Returns the first arithmetic with the best verdict and the fewest failures, with its numerics. An error in a
/// stated arithmetic is returned; an arithmetic that only the values show is skipped if it is not possible.
fn best_way(
    ways: &[EngineArithmetic],
    judge: impl Fn(&EngineArithmetic, &dyn Numerics) -> Result<Outcome>,
) -> Result<(Outcome, &EngineArithmetic, &dyn Numerics)> {
    let [said, shown @ ..] = ways else { panic!("the list begins with the arithmetic that the dump states") };
    let (outcome, numerics) = best_choice(said, |numerics| judge(said, numerics))?;
    let mut best = (outcome, said, numerics);
    for way in shown {
        if best.0.verdict == Verdict::Pass {
            break;
        }
        let Ok((outcome, numerics)) = best_choice(way, |numerics| judge(way, numerics)) else { continue };
        best = if wrong(&outcome) < wrong(&best.0) { (outcome, way, numerics) } else { best };
    }
    Ok(best)
}

/// Returns the first numerics of an arithmetic that give the best verdict.
fn best_choice(
    way: &EngineArithmetic,
    judge: impl Fn(&dyn Numerics) -> Result<Outcome>,
) -> Result<(Outcome, &dyn Numerics)> {
    let mut best = (judge(&*way.choices[0])?, &*way.choices[0]);
    for numerics in &way.choices[1..] {
        if best.0.verdict != Verdict::Pass {
            let other = judge(&**numerics)?;
            best = if other.verdict < best.0.verdict { (other, &**numerics) } else { best };
        }
    }
    Ok(best)
}

fn undecided_between(one: &str, other: &str) -> String {
    format!(
        "the dump does not state its arithmetic, and its values fit {one} and {other} about equally well; \
         name the arithmetic in settings.numerics, or use --numerics"
    )
}

/// Returns the note for a dump that does not state which arithmetic its engine used with its weights.
pub(super) fn about_arithmetic(producer: &Producer, names: &[&str], told: &str) -> String {
    if let [_] = names {
        let stated = |key: &str| Some(format!("{key} {}", producer.setting(key)?));
        let cache = producer.has_eight_bit_cache().then_some("kv_cache");
        let stated: Vec<_> = ["weights", "dtype"].into_iter().chain(cache).filter_map(stated).collect();
        return format!(
            "{} cannot be reproduced, so an error that rounding to 8 bits may explain is inconclusive; use \
             --numerics NAME to choose the arithmetic",
            stated.join(", ")
        );
    }
    format!(
        "the dump does not state its arithmetic for these weights: xcheck ran {} and reports {told}",
        names.join(" and ")
    )
}

/// Restricts each cause to its own tap and layers. Returns `None` if every cause already applies to all taps and
/// layers.
fn with_narrowed_causes(outcome: &Outcome) -> Option<Outcome> {
    let layers_of = |finding: &Finding| {
        let rows = outcome.rows.iter().filter(|row| finding.points.contains(&row.site.point));
        rows.filter_map(|row| row.site.layer).collect::<BTreeSet<usize>>()
    };
    let narrowed = outcome
        .findings
        .iter()
        .map(|finding| Finding { supposed: finding.narrowed(&layers_of(finding)), ..finding.clone() });
    let findings: Vec<Finding> = narrowed.collect();
    (findings != outcome.findings).then(|| Outcome { findings, ..outcome.clone() })
}
