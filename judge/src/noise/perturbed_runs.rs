//! Measures the noise floor with perturbed runs of the model.

use crate::check::{
    ContinuationValues, ManifestStatement, RunContext, is_of_logits, measure_sketches, sketch_of,
};
use std::collections::{HashMap, HashSet};

use crate::checkpoint::{Point, Site};
use crate::error::Result;
use crate::exact::{Choice, ChoiceSet, Profile};
use crate::measure::{Distribution, Errors, ValuePrecision, measure};
use crate::noise::excess::{Excess, PerturbedErrors};
use crate::noise::logprob_noise::LogprobNoise;
use crate::noise::noise_floor::NoiseFloor;
use crate::noise::rounding_choices::RowNoise;
use crate::numerics::moved;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::view::View;

/// The noise floors of sites, and the dump's errors relative to them.
#[derive(Default)]
pub(crate) struct NoiseMeasurement {
    pub(crate) floors: HashMap<Site, NoiseFloor>,
    pub(crate) excesses: HashMap<Site, Excess>,
    /// The errors of the rows of all sites.
    pub(crate) rows: RowNoise,
    /// The last logits of the unperturbed run, by site.
    pub(crate) logits: HashMap<Site, Tensor>,
}

/// Rounding by an engine in addition to that of our numerics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtraRoundings {
    /// True if attention's operands and results are rounded to the cache's type.
    pub(crate) short_attention: bool,
    /// True if operands of products are rounded to 8 bits.
    pub(crate) eight_bits: bool,
    /// True if the engine differs only in summation order.
    pub(crate) sums_alone: bool,
    /// True if operands of `f32` products are rounded to TF32.
    pub(crate) tf32: bool,
}

/// Measures the noise floor at `sites` for an engine with these extra roundings. The run continues with the
/// values that `go_on` selects.
///
/// # Errors
/// The errors of the run itself.
pub(crate) fn floors(
    context: &RunContext,
    go_on: ContinuationValues,
    sites: &HashSet<Site>,
    extra: ExtraRoundings,
) -> Result<NoiseMeasurement> {
    if sites.is_empty() {
        return Ok(NoiseMeasurement::default());
    }
    let mut script = context.script();
    // Tokens generated after the dump's passes are measured, too.
    script.passes.iter_mut().for_each(|step| step.tapped = true);
    let mut watch = NoiseFloorTap {
        context,
        sites,
        still: HashMap::new(),
        floors: HashMap::new(),
        noise: HashMap::new(),
        chances: LogprobNoise::default(),
    };
    let comparison = context.comparing(go_on).distributing(sites);
    let (checks, _) = context.run_comparing(context.numerics, &script, comparison, &mut watch)?;
    // The random seed depends on the unit: a unit always gets the same noise, and different units get
    // different noise.
    let profile = match extra.tf32 && context.profile.operands.tf32().is_none() {
        true => context.profile.otherwise(ChoiceSet::default().with(Choice::Tf32)),
        false => context.profile,
    };
    let own = context.unit.part().map_or(0, |part| part.layers.start as u64 + 1) << 32;
    moved(
        context.numerics,
        own,
        |noisy| {
            let noisy = if extra.eight_bits { noisy.with_eight_bits() } else { noisy };
            let noisy = match profile.short_products() {
                Some(unit) => noisy.with_short_products(unit),
                None => noisy,
            };
            let stated = profile.roundings_beyond(&Profile::of(context.numerics));
            let noisy = noisy.with_roundings(stated);
            let noisy = if extra.sums_alone { noisy.with_sums_alone() } else { noisy };
            if extra.short_attention { noisy.with_short_attention() } else { noisy }
        },
        |numerics| context.run(numerics, &script, go_on, &mut watch).map(drop),
    )?;
    let errors: HashMap<Site, Distribution> =
        checks.into_iter().filter_map(|check| Some((check.site, check.distribution?))).collect();
    let excesses = excesses(&watch.noise, &errors);
    let rows = RowNoise::of(&errors, &watch.noise);
    let NoiseFloorTap { still: mut logits, floors, .. } = watch;
    logits.retain(|site, _| site.point == Point::LastLogits);
    Ok(NoiseMeasurement { floors, excesses, rows, logits })
}

/// Compares the distribution of the dump's errors with that of the perturbed runs.
fn excesses(
    noise: &HashMap<Site, PerturbedErrors>,
    errors: &HashMap<Site, Distribution>,
) -> HashMap<Site, Excess> {
    let every_pass = |site: &Site| Site { pass: None, ..*site };
    let mut sites: Vec<&Site> = noise.keys().collect();
    sites.sort_by_key(|site| site.flow_order());
    let mut all_passes: HashMap<Site, PerturbedErrors> = HashMap::new();
    for site in sites {
        all_passes.entry(every_pass(site)).or_default().join(&noise[site]);
    }
    let of_site = |(site, errors): (&Site, &Distribution)| {
        Some((*site, Excess::of(errors, noise.get(site)?, &all_passes[&every_pass(site)])?))
    };
    errors.iter().filter_map(of_site).collect()
}

/// A tap that stores the first run's values and measures the differences of later runs.
struct NoiseFloorTap<'s> {
    context: &'s RunContext<'s>,
    sites: &'s HashSet<Site>,
    still: HashMap<Site, Tensor>,
    floors: HashMap<Site, NoiseFloor>,
    noise: HashMap<Site, PerturbedErrors>,
    chances: LogprobNoise,
}

impl Tap for NoiseFloorTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let held = self.context.held;
        // The expert choice of the first run is kept. A perturbed choice of experts would make the noise
        // floor too large.
        if site.point == Point::Experts {
            return self.still.entry(site).or_insert(value).clone();
        }
        let followed = Site { point: Point::TokenLogprobs, ..site };
        if site.point == Point::Logits && self.sites.contains(&followed) {
            let rows = held.dump.held_rows(followed);
            self.chances.look_at(followed, &value, rows);
        }
        if self.sites.contains(&site) {
            match self.still.get(&site) {
                None => drop(self.still.insert(site, value.clone())),
                Some(still) => {
                    let mut floor = self.floors.get(&site).copied().unwrap_or_default();
                    let mut noise = self.noise.remove(&site).unwrap_or_default();
                    let chance = self.chances.of(site, still);
                    for moved in [Some(&value), chance.as_ref()].into_iter().flatten() {
                        let errors = self.moved(site, moved, still);
                        floor = floor.or(&errors);
                        if !held.dump.sketches(site) {
                            noise.add(&self.distribution(site, moved, still), errors.max_abs);
                        }
                    }
                    self.floors.insert(site, floor);
                    self.noise.insert(site, noise);
                }
            }
        }
        value
    }
}

impl NoiseFloorTap<'_> {
    fn distribution(&self, site: Site, value: &Tensor, still: &Tensor) -> Distribution {
        let visible = self.context.visible(site);
        let columns = |row: usize| visible.columns(site.point, still.shape(), row);
        let [value, still] = [value, still].map(View::from);
        Distribution::of(&value, &still, ValuePrecision::F32, columns, is_of_logits(site.point))
    }

    fn moved(&self, site: Site, value: &Tensor, still: &Tensor) -> Errors {
        let held = self.context.held;
        let visible = self.context.visible(site);
        let columns = |row: usize| visible.columns(site.point, still.shape(), row);
        let moved = match held.dump.sketches(site) {
            true => {
                let sketch = |x| sketch_of(site.point, &View::from(x), held.stored(site));
                measure_sketches(&sketch(value), &sketch(still), value.data().len())
            }
            false => measure(value, still, ValuePrecision::F32, columns),
        };
        moved.errors
    }
}

/// Extra roundings that a dump does not state, with the reason to assume them.
pub(crate) struct UnstatedRoundings {
    pub(crate) extra: ExtraRoundings,
    /// The reason given for a row that only these roundings explain.
    pub(crate) why: String,
}

/// Returns the extra roundings that the dump states, and the extra roundings that its engine may apply although the
/// dump does not state them.
pub(crate) fn extra_roundings(context: &RunContext) -> (ExtraRoundings, Vec<UnstatedRoundings>) {
    let cache = context.numerics.cache_type();
    let short = context.short_attention();
    let stated = ExtraRoundings {
        short_attention: short == Some(ManifestStatement::Yes),
        ..ExtraRoundings::default()
    };
    let mut extra_roundings = Vec::new();
    let why = format!(
        "rounding explains the error only if attention is computed in {cache} like the cache, which the dump \
         does not state; if it is, set \"queries\": \"{cache}\" in producer.rounding of the manifest"
    );
    extra_roundings.extend(
        (short == Some(ManifestStatement::No))
            .then_some(UnstatedRoundings { extra: ExtraRoundings { short_attention: true, ..stated }, why }),
    );
    let why =
        "rounding explains the error only if products are computed from 8-bit integers, which the dump \
               does not state; name the arithmetic in settings.numerics, or record the operands of the \
               products"
            .to_owned();
    let extra =
        ExtraRoundings { short_attention: short.is_some(), eight_bits: true, ..ExtraRoundings::default() };
    extra_roundings.extend((!context.is_stated).then_some(UnstatedRoundings { extra, why }));
    (stated, extra_roundings)
}
