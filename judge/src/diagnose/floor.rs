//! What rounding can do to a model on its input: the run again, its stages moved within their own rounding.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::{Point, Site};
use crate::compare::{Continue, Floor, measure_sketches, sketch_of};
use crate::diagnose::chances::Chances;
use crate::diagnose::runs::Setting;
use crate::engine::Script;
use crate::error::Result;
use crate::exact::Profile;
use crate::measure::{Errors, Grain, measure};
use crate::numerics::{Numerics, moved};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::view::View;

/// How far rounding moves the values at `sites`, in a run that goes on as `go_on` says; with `short`, where attention is computed
/// in the type of its cache.
///
/// # Errors
/// As the run itself.
pub(super) fn floors(
    setting: &Setting,
    go_on: Continue,
    sites: &HashSet<Site>,
    short: bool,
) -> Result<HashMap<Site, Floor>> {
    if sites.is_empty() {
        return Ok(HashMap::new());
    }
    let mut script = setting.script();
    // What was generated beyond the dump's passes is looked at here, too.
    script.passes.iter_mut().for_each(|step| step.tapped = true);
    let mut watch =
        Watch { setting, sites, still: HashMap::new(), floors: HashMap::new(), chances: Chances::default() };
    run(setting, setting.numerics, &script, go_on, &mut watch)?;
    // Units have noise of their own: the same wherever one is judged, and another than the next one's.
    let own = setting.unit.part().map_or(0, |part| part.layers.start as u64 + 1) << 32;
    moved(
        setting.numerics,
        own,
        |noisy| {
            let noisy = if setting.is_stated { noisy } else { noisy.with_eight_bits() };
            let noisy = match setting.profile.short_products() {
                Some(unit) => noisy.with_short_products(unit),
                None => noisy,
            };
            let stated = setting.profile.roundings_beyond(&Profile::of(setting.numerics));
            let noisy = noisy.with_roundings(stated);
            if short { noisy.with_short_attention() } else { noisy }
        },
        |numerics| run(setting, numerics, &script, go_on, &mut watch),
    )?;
    Ok(watch.floors)
}

fn run(
    setting: &Setting,
    numerics: &dyn Numerics,
    script: &Script,
    go_on: Continue,
    watch: &mut Watch,
) -> Result<()> {
    setting.run(numerics, script, go_on, watch).map(|_| ())
}

/// Keeps the values of the first run, and measures how far those of the others are from them.
struct Watch<'s> {
    setting: &'s Setting<'s>,
    sites: &'s HashSet<Site>,
    still: HashMap<Site, Tensor>,
    floors: HashMap<Site, Floor>,
    chances: Chances,
}

impl Tap for Watch<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let held = self.setting.held;
        // Noise that chooses another expert would make any error look small: the choice stays.
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
                    floor = floor.or(&self.moved(site, &value, still));
                    if let Some(chance) = self.chances.of(site, still) {
                        floor = floor.or(&self.moved(site, &chance, still));
                    }
                    self.floors.insert(site, floor);
                }
            }
        }
        value
    }
}

impl Watch<'_> {
    fn moved(&self, site: Site, value: &Tensor, still: &Tensor) -> Errors {
        let held = self.setting.held;
        let sight = self.setting.sight(site);
        let columns = |row: usize| sight.columns(site.point, still.shape(), row);
        let moved = match held.dump.sketches(site) {
            true => {
                let sketch = |x| sketch_of(site.point, &View::from(x), held.stored(site));
                measure_sketches(&sketch(value), &sketch(still), value.data().len())
            }
            false => measure(value, still, Grain::F32, columns),
        };
        moved.errors
    }
}
