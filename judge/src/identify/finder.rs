//! A tap that compares every value of our run with every array.

use std::collections::HashMap;

use crate::checkpoint::{Point, Site, ValueKind};
use crate::identify::array_layout::{ArrayLayout, ways};
use crate::identify::distance::{ArrayAndTap, TapDistance};
use crate::identify::sizes::AxisSizes;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Maximum number of possible sites that are kept per array.
const REMEMBERED: usize = 24;

/// A named array of a file, with its values.
pub(super) struct FileArray {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// A possible site of an array.
#[derive(Clone, Debug)]
pub(super) struct SiteMatch {
    pub(crate) site: Site,
    pub(crate) near: TapDistance,
    pub(crate) way: ArrayLayout,
}

impl SiteMatch {
    /// Returns true if rounding explains the difference between the array and the site.
    pub(crate) fn is_honest(&self) -> bool {
        self.near.is_honest()
    }
}

/// A tap on our run that looks for the arrays. The run continues with the file's values wherever they were
/// found, so that later operations have the same inputs as the file.
pub(super) struct Finder<'f> {
    pub(crate) arrays: &'f [FileArray],
    pub(crate) sizes: AxisSizes,
    /// Sliding attention window of each layer, in positions; `None` for full attention.
    pub(crate) windows: Vec<Option<usize>>,
    /// Arrays assumed at sites that they do not match within rounding.
    pub(crate) presumed: &'f HashMap<Site, (usize, SiteMatch)>,
    /// True for each array that is not yet assigned to a tap.
    pub(crate) open: Vec<bool>,
    /// Sites of our run that match each array.
    pub(crate) found: Vec<Vec<SiteMatch>>,
    /// All sites with their shapes.
    pub(crate) seen: Vec<(Site, Vec<usize>)>,
}

impl Finder<'_> {
    fn look(&mut self, site: Site, value: &Tensor) -> Option<Vec<f32>> {
        let window = site.layer.and_then(|layer| self.windows.get(layer).copied().flatten());
        let mut best: Option<(usize, SiteMatch)> = None;
        for (index, array) in self.arrays.iter().enumerate().filter(|(index, _)| self.open[*index]) {
            let sides = ArrayAndTap { theirs: &array.values, ours: value.data(), point: site.point, window };
            for way in ways(site, value.shape(), &array.shape, &self.sizes) {
                let Some(near) = sides.nearness(&way) else { continue };
                let near = self.since_copied(index, site, near);
                let one = SiteMatch { site, near, way };
                let is_better = |best: &Option<(usize, SiteMatch)>| {
                    best.as_ref().is_none_or(|(_, best)| one.near.rel_l2 < best.near.rel_l2)
                };
                if one.is_honest() && one.near.scale == 1.0 && is_better(&best) {
                    best = Some((index, one.clone()));
                }
                remember(&mut self.found[index], one);
            }
        }
        let taken = best.or_else(|| self.presumed.get(&site).cloned());
        let (index, one) = taken?;
        let theirs = &self.arrays[index].values;
        let sides = ArrayAndTap { theirs, ours: value.data(), point: site.point, window };
        Some(sides.replaced(&one.way, one.near.scale))
    }
}

impl Finder<'_> {
    /// If the array also matches the input of the site's operation, raises the distance of a match to that of the
    /// input. Examples are a cache, or RoPE in a model without RoPE. The second match is no further evidence.
    fn since_copied(&self, index: usize, site: Site, near: TapDistance) -> TapDistance {
        let is_input = |known: &SiteMatch| {
            let from = site.point.inputs().iter().flat_map(|inputs| inputs.iter());
            from.map(|&point| Site { point, ..site }).any(|from| from == known.site && from != site)
        };
        let before = self.found[index].iter().filter(|known| known.is_honest() && is_input(known));
        let furthest = before.map(|known| known.near).max_by(|a, b| a.rel_l2.total_cmp(&b.rel_l2));
        let furthest = furthest.filter(|known| known.rel_l2 > near.rel_l2);
        furthest.map_or(near, |TapDistance { rel_l2, is_noise, .. }| TapDistance { rel_l2, is_noise, ..near })
    }
}

/// Adds a match, one per site, and keeps only the nearest ones. Among the layouts of a site, the simplest is
/// kept unless another one is much nearer.
fn remember(found: &mut Vec<SiteMatch>, one: SiteMatch) {
    let twin = found
        .iter()
        .position(|known| known.site == one.site && (known.way.part.is_some() == one.way.part.is_some()));
    match twin {
        // Layouts are tried from simple to complex; a complex one must be much nearer.
        Some(at) if one.near.rel_l2 * 2.0 < found[at].near.rel_l2 => found[at] = one,
        Some(_) => {}
        None => found.push(one),
    }
    if found.len() > REMEMBERED {
        found.sort_by(|a, b| a.near.rel_l2.total_cmp(&b.near.rel_l2));
        found.truncate(REMEMBERED);
    }
}

impl Tap for Finder<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point.kind() != ValueKind::Real || matches!(site.point, Point::Tokens) {
            return value;
        }
        self.seen.push((site, value.shape().to_vec()));
        match self.look(site, &value) {
            Some(replaced) => Tensor::new(value.shape(), replaced),
            None => value,
        }
    }
}
