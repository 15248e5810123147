//! `--shard`: judges one of several parts of a comparison. The parts may run on different machines.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::check::{Role, Rules};
use crate::cli::comparison::ComparisonContext;
use crate::cli::dump_hash::DumpHash;
use crate::cli::engine_arithmetic::about_arithmetic;
use crate::cli::named_dump::NamedDump;
use crate::cli::names::command;
use crate::cli::progress::RunProgress;
use crate::cli::requested_model::ModelVariant;
use crate::cli::terminal::tell;
use crate::cli::unstated_properties::{cache_of_rows, contradiction_of_dtype, dtype_of_values};
use crate::diagnose::{UnitWork, cross_check_units};
use crate::disk_cache::{DiskCache, PinnedContent};
use crate::error::{Error, Result};
use crate::input;
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::plan::{Plan, Shard};
use crate::report::{self, Comparison, Report, ShardedComparison, found_before};
use crate::verdict::{Evidence, Outcome};

/// Returns a note on the other shards.
fn told_of_part(outcome: &Outcome, all: usize) -> String {
    let wanted = &outcome.basis.wanted;
    let names: Vec<String> = wanted.iter().map(|(_, unit)| unit.to_string()).collect();
    let which = match (wanted.first(), wanted.last()) {
        (Some((first, _)), Some((last, _))) => format!("units {}-{} of {all}", first + 1, last + 1),
        _ => format!("none of {all} units"),
    };
    format!("part of a comparison: {which} ({}); combine all reports with xcheck merge", names.join(", "))
}

impl ComparisonContext<'_> {
    /// Judges a shard, unless it is already finished.
    pub(super) fn part(
        &self,
        shard: Shard,
        named: &NamedDump,
        role: Role,
        variant: &ModelVariant,
        loaded: &LoadedModel,
    ) -> Result<Comparison> {
        let started = SystemTime::now();
        if let Some(what) = named.lacking.first() {
            return Err(Error::Usage(format!("--shard: {what}")));
        }
        let kept = DiskCache::from_env()?;
        let files = named.files.begin_hash(kept.clone())?;
        let (numerics, is_stated) = self.settled(named, loaded, "--shard")?;
        let plan = Plan::of(&*loaded.model, &named.dump, numerics.activation_type(), self.selection);
        let suppositions = self.options.suppositions();
        let budget = self.options.causes.budget();
        let rules = self.rules(is_stated, &named.dump.manifest.producer, role, loaded, &suppositions);
        let rules = Rules { budget: Some(&budget), ..rules };
        let compared = |outcome: &Outcome| -> Result<Comparison> {
            let remarks = self.remarks(named, variant, outcome, is_stated, &*numerics)?;
            let mut outcome = outcome.clone();
            outcome.notes.extend(remarks.clone());
            outcome.notes.push(told_of_part(&outcome, plan.units.len()));
            let sharded = ShardedComparison {
                plan: plan.hash.clone(),
                units: plan.units.clone(),
                asked: self.asked(variant, &*numerics, rules, (&files, &kept))?,
                remarks,
            };
            self.comparison(named, (variant, loaded), outcome, started, Some(sharded))
        };
        let mut keep = |outcome: &Outcome| self.output.keep(&self.report(compared(outcome)?));
        let wanted = shard.units(&plan.costs);
        let mut run = |wanted, done| {
            let work = UnitWork { wanted: Some(wanted), done, finished: Some(&mut keep) };
            let mut progress = RunProgress::new(&named.name, loaded.model.dimensions().n_layers)
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
        // Results without a unit only identify the comparison.
        let done = match self.output.finished().filter(|_| self.options.shard.resume) {
            Some(before) => self.taken_over(before, &compared(&run(0..0, Vec::new())?)?, &files)?,
            None => Vec::new(),
        };
        let outcome = run(wanted, done)?;
        files.check_unchanged()?;
        keep(&outcome)?;
        compared(&outcome)
    }

    /// Returns the finished results of an earlier run of the same comparison. Results of another comparison are deleted
    /// at once, so that they cannot be merged.
    fn taken_over(
        &self,
        before: Result<Report, String>,
        now: &Comparison,
        files: &DumpHash,
    ) -> Result<Vec<(usize, Evidence)>> {
        const UNCERTAIN: &str = "the dump has no reliable content hash, so a change could not be detected";
        let is_certain = |report| if files.is_certain { Ok(report) } else { Err(UNCERTAIN.to_owned()) };
        let found = before.and_then(is_certain).and_then(|report| found_before(report, now));
        match found {
            Ok(found) => Ok(found),
            Err(why) => {
                tell!("note: --resume starts over and discards the results of the earlier run: {why}");
                self.output.keep(&self.report(now.clone()))?;
                Ok(Vec::new())
            }
        }
    }

    fn report(&self, comparison: Comparison) -> Report {
        let checkpoints = self.selection.checkpoints.clone();
        Report { command: command(), results: vec![comparison], checkpoints, served: None }
    }

    /// Returns the only possible numerics of a dump. Returns an error if there are several, because only the whole
    /// comparison shows which of them explain the dump best.
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
                "{asked}: the dump does not state its arithmetic for these weights, and one shard is not enough \
                 to determine it; give --numerics {}",
                names.join(" or --numerics ")
            )));
        }
        if cache_of_rows(&named.dump).is_some() && !options.names_cache() {
            return Err(Error::Usage(format!(
                "{asked}: the dump stores its KV cache in a shorter type without settings.kv_cache, and a \
                 part is not enough to determine the engine's type; give --kv-cache"
            )));
        }
        let is_said = self.options.mode.profile().is_some();
        let contradiction = contradiction_of_dtype(&named.dump).filter(|_| !self.has_named_arithmetic());
        if let Some(shown) = contradiction {
            let note = shown.note;
            return Err(Error::Usage(format!(
                "{asked}: {note}; one shard is not enough to determine the numerics: correct the manifest, or give --numerics"
            )));
        }
        let shown = dtype_of_values(&named.dump).filter(|_| !options.is_named());
        match shown.map(|shown| shown.rounding.is_some()) {
            Some(true) if !is_said => Err(Error::Usage(format!(
                "{asked}: only the dump's products have values of a 16-bit type, as with torch's autocast, \
                 and one shard is not enough to determine the engine's type; give --rounding bf16-autocast or \
                 f16-autocast"
            ))),
            Some(false) => Err(Error::Usage(format!(
                "{asked}: most taps have values of a 16-bit type without settings.dtype, and a part is not \
                 enough to determine the engine's type; give --numerics"
            ))),
            _ => Ok((choices.remove(0), is_stated)),
        }
    }

    /// Returns true if options name the arithmetic. Then it is not inferred from the dump's values.
    pub(super) fn has_named_arithmetic(&self) -> bool {
        self.options.numerics.is_named() || self.options.mode.profile().is_some()
    }

    /// Returns the notes that do not belong to a unit.
    pub(super) fn remarks(
        &self,
        named: &NamedDump,
        variant: &ModelVariant,
        outcome: &Outcome,
        is_stated: bool,
        numerics: &dyn Numerics,
    ) -> Result<Vec<String>> {
        let producer = &named.dump.manifest.producer;
        let arithmetic =
            (!is_stated).then(|| about_arithmetic(producer, &[numerics.name()], numerics.name()));
        Ok(arithmetic.into_iter().chain(self.besides(named, variant, outcome)?).collect())
    }

    /// Returns the settings that all shards must share, as text: everything that a shard reads, identified by its
    /// content.
    fn asked(
        &self,
        variant: &ModelVariant,
        numerics: &dyn Numerics,
        rules: Rules,
        (files, kept): (&DumpHash, &DiskCache),
    ) -> Result<BTreeMap<String, String>> {
        let options = self.options;
        let types = [numerics.activation_type(), numerics.cache_type()].map(|dtype| dtype.name());
        let supposed: Vec<String> = options.suppose.words().collect();
        let more = [
            ("content of the dump", files.told()?),
            ("weights", variant.sha256()?.unwrap_or_else(|| variant.pins().join(" "))),
            ("configuration", self.configuration(variant)?),
            ("map", maps_told(&options.map.maps)?),
            ("computed in", types.join(", cache in ")),
            ("precision", rules.precision.to_owned()),
            ("options", [options.model.words(), options.mode.words()].concat().join(" ")),
            ("supposed", supposed.join(" ")),
            ("tolerances", self.tolerances_told()?),
            (report::BUILD, build(kept)?),
        ];
        Ok(more.into_iter().map(|(what, value)| (what.to_owned(), value)).collect())
    }

    /// Returns the SHA-256 of the configuration files needed to load the weights.
    fn configuration(&self, variant: &ModelVariant) -> Result<String> {
        let kernels = self.options.model.kernel_config().map(sha256_of).transpose()?;
        let settings = variant.files.sha256_of_settings();
        Ok([settings].into_iter().chain(kernels).collect::<Vec<_>>().join(" "))
    }

    /// Returns the SHA-256 of the user's tolerance table.
    fn tolerances_told(&self) -> Result<String> {
        self.options.select.tolerance_file().map_or(Ok("shipped".to_owned()), sha256_of)
    }
}

/// Returns the requested maps; a map file is identified by its SHA-256.
fn maps_told(maps: &[String]) -> Result<String> {
    let told = maps.iter().map(|name| match Path::new(name) {
        file if file.is_file() => sha256_of(file),
        _ => Ok(name.clone()),
    });
    Ok(told.collect::<Result<Vec<_>>>()?.join(" "))
}

fn sha256_of(file: &Path) -> Result<String> {
    Ok(hex::encode(Sha256::digest(input::bytes(file)?)))
}

/// Returns the SHA-256 of this program. Its version is not enough, since a build from source has the version of the
/// last release.
fn build(kept: &DiskCache) -> Result<String> {
    let program = env::current_exe().map_err(Error::io("find", Path::new("xcheck")))?;
    let content = PinnedContent::at(&program)?;
    content.map_err(|_| Error::Usage(format!("{}: expected a file", program.display())))?.sha256(kept)
}
