//! `--shard`: a part of a comparison, as one of many machines makes it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::cli::judging::{Judging, about_arithmetic};
use crate::cli::named::NamedDump;
use crate::cli::names::command;
use crate::cli::progress::Progress;
use crate::cli::target::Variant;
use crate::cli::unsaid::{cache_of_rows, dtype_of_values};
use crate::compare::Role;
use crate::diagnose::{Outcome, Rules, Work, cross_check_units};
use crate::error::{Error, Result};
use crate::input;
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::plan::{Plan, Shard};
use crate::report::{Comparison, Report, Sharded, found_before};

/// That there is more, and who has it.
fn told_of_part(outcome: &Outcome, all: usize) -> String {
    let wanted = &outcome.basis.wanted;
    let names: Vec<String> = wanted.iter().map(|(_, unit)| unit.to_string()).collect();
    let which = match (wanted.first(), wanted.last()) {
        (Some((first, _)), Some((last, _))) => format!("units {}-{} of {all}", first + 1, last + 1),
        _ => format!("none of {all} units"),
    };
    format!("a part of a comparison: {which} ({}); xcheck merge puts all reports together", names.join(", "))
}

impl Judging<'_> {
    /// Judges a part, unless it is finished already.
    pub(super) fn part(
        &self,
        shard: Shard,
        named: &NamedDump,
        role: Role,
        variant: &Variant,
        loaded: &LoadedModel,
    ) -> Result<Comparison> {
        let started = SystemTime::now();
        let (numerics, is_stated) = self.settled(named, loaded, "--shard")?;
        let plan = Plan::of(&*loaded.model, &named.dump, numerics.activation_type(), self.selection);
        let suppositions = self.options.suppositions();
        let rules = self.rules(is_stated, named, role, loaded, &suppositions);
        let compared = |outcome: &Outcome| -> Result<Comparison> {
            let remarks = self.remarks(named, variant, outcome, is_stated, &*numerics)?;
            let mut outcome = outcome.clone();
            outcome.notes.extend(remarks.clone());
            outcome.notes.push(told_of_part(&outcome, plan.units.len()));
            let sharded = Sharded {
                plan: plan.hash.clone(),
                units: plan.units.clone(),
                asked: self.asked(variant, &*numerics, rules)?,
                remarks,
            };
            self.comparison(named, (variant, loaded), outcome, started, Some(sharded))
        };
        let mut keep = |outcome: &Outcome| self.output.keep(&self.report(compared(outcome)?));
        let wanted = shard.units(&plan.costs);
        let mut run = |wanted, done| {
            let work = Work { wanted: Some(wanted), done, finished: Some(&mut keep) };
            let mut progress = Progress::new(&named.name, loaded.model.dimensions().n_layers)
                .along(named.dump.manifest.passes.iter().map(|pass| pass.tokens.len()));
            cross_check_units(
                &named.name,
                &*loaded.model,
                &*numerics,
                &named.dump,
                rules,
                work,
                &mut progress,
            )
        };
        // Of no unit, it tells what the comparison is.
        let before = self.output.finished().filter(|_| self.options.shard.resume);
        let done = match before {
            Some(before) => found_before(before, &compared(&run(0..0, Vec::new())?)?),
            None => Vec::new(),
        };
        let outcome = run(wanted, done)?;
        keep(&outcome)?;
        compared(&outcome)
    }

    fn report(&self, comparison: Comparison) -> Report {
        let checkpoints = self.selection.checkpoints.clone();
        Report { command: command(), results: vec![comparison], checkpoints, served: None }
    }

    /// The only numerics that a dump may have been made with: where there are several, which explain it best shows in the
    /// whole alone.
    pub(super) fn settled(
        &self,
        named: &NamedDump,
        loaded: &LoadedModel,
        asked: &str,
    ) -> Result<(Box<dyn Numerics>, bool)> {
        let options = &self.options.numerics;
        let (mut choices, is_stated) = options.of_dump(&*loaded.model, &named.dump.manifest.producer)?;
        choices.retain(|numerics| numerics.cache_noise() == 0.0);
        let names: Vec<_> = choices.iter().map(|numerics| numerics.name()).collect();
        if names.len() > 1 {
            return Err(Error::Usage(format!(
                "{asked}: the dump does not say how its engine computes with these weights, and a part does not show it; \
                 give --numerics {}",
                names.join(" or --numerics ")
            )));
        }
        if cache_of_rows(&named.dump).is_some() && !options.names_cache() {
            return Err(Error::Usage(format!(
                "{asked}: the dump stores its KV cache in a shorter type and does not say settings.kv_cache, and a part \
                 does not show which its engine has; give --kv-cache"
            )));
        }
        let shown = dtype_of_values(&named.dump).filter(|_| !options.is_named());
        let is_said = self.options.mode.profile().is_some();
        match shown.map(|shown| shown.rounding.is_some()) {
            Some(true) if !is_said => Err(Error::Usage(format!(
                "{asked}: the dump's products hold numbers of a short type and the rest does not, as of torch's autocast, and a part \
                 does not show what its engine computes in; give --rounding bf16-autocast or f16-autocast"
            ))),
            Some(false) => Err(Error::Usage(format!(
                "{asked}: most of the dump's taps hold numbers of a short type, it does not say settings.dtype, and a part does \
                 not show what its engine computes in; give --numerics"
            ))),
            _ => Ok((choices.remove(0), is_stated)),
        }
    }

    /// What is worth knowing besides what units tell.
    pub(super) fn remarks(
        &self,
        named: &NamedDump,
        variant: &Variant,
        outcome: &Outcome,
        is_stated: bool,
        numerics: &dyn Numerics,
    ) -> Result<Vec<String>> {
        let producer = &named.dump.manifest.producer;
        let arithmetic =
            (!is_stated).then(|| about_arithmetic(producer, &[numerics.name()], numerics.name()));
        Ok(arithmetic.into_iter().chain(self.besides(named, variant, outcome)?).collect())
    }

    /// What must be the same of all parts, in words.
    fn asked(
        &self,
        variant: &Variant,
        numerics: &dyn Numerics,
        rules: Rules,
    ) -> Result<BTreeMap<String, String>> {
        let options = self.options;
        let types = [numerics.activation_type(), numerics.cache_type()].map(|dtype| dtype.name());
        let supposed: Vec<String> = options.suppose.words().collect();
        let more = [
            ("weights", variant.sha256()?.unwrap_or_else(|| variant.pins().join(" "))),
            ("computed in", types.join(", cache in ")),
            ("precision", rules.precision.to_owned()),
            ("options", [options.model.words(), options.mode.words()].concat().join(" ")),
            ("supposed", supposed.join(" ")),
            ("tolerances", self.tolerances_told()?),
        ];
        Ok(more.into_iter().map(|(what, value)| (what.to_owned(), value)).collect())
    }

    /// SHA-256 of the user's table.
    fn tolerances_told(&self) -> Result<String> {
        let Some(file) = self.options.select.tolerance_file() else { return Ok("shipped".to_owned()) };
        let text = input::bytes(file)?;
        Ok(hex::encode(Sha256::digest(text)))
    }
}
