//! Text that describes a cause's sites.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site};

/// Describes sites by tap and layer. `slides` holds one entry per layer: true if the layer has a sliding
/// window.
pub(crate) struct SiteDescription<'p> {
    pub(crate) slides: &'p [bool],
}

impl SiteDescription<'_> {
    /// Describes sites in one phrase, e.g. "q_rope and k_rope in all layers".
    pub(crate) fn told(&self, sites: &[Site]) -> String {
        let points: BTreeSet<Point> = sites.iter().map(|site| site.point).collect();
        let layers: BTreeSet<usize> = sites.iter().filter_map(|site| site.layer).collect();
        let names: Vec<&str> = points.iter().map(|point| point.name()).collect();
        let names = names.join(", ");
        let that_slide = |slides: bool| -> BTreeSet<usize> {
            (0..self.slides.len()).filter(|&layer| self.slides[layer] == slides).collect()
        };
        let which = match layers.len() {
            0 => return names,
            all if all == self.slides.len() => return format!("{names} in all layers"),
            _ if layers == that_slide(true) => ", all those with a sliding window",
            _ if layers == that_slide(false) => ", all those with full attention",
            _ => "",
        };
        let s = if layers.len() == 1 { "" } else { "s" };
        format!("{names} in layer{s} {}{which}", ranges(&layers))
    }

    /// Describes sites tap by tap, e.g. "q_rope, layers 0-3, passes 0-4".
    pub(crate) fn by_tap(&self, sites: &[Site]) -> Vec<String> {
        let points: BTreeSet<Point> = sites.iter().map(|site| site.point).collect();
        let told = |point: Point| {
            let of = |number: fn(&Site) -> Option<usize>, one: &str, many: &str| {
                let numbers: BTreeSet<usize> =
                    sites.iter().filter(|site| site.point == point).filter_map(number).collect();
                match numbers.len() {
                    0 => String::new(),
                    1 => format!(", {one} {}", ranges(&numbers)),
                    _ => format!(", {many} {}", ranges(&numbers)),
                }
            };
            format!(
                "{point}{}{}",
                of(|site| site.layer, "layer", "layers"),
                of(|site| site.pass, "pass", "passes")
            )
        };
        points.into_iter().map(told).collect()
    }
}

/// Formats numbers as ranges, e.g. "0-4, 6-10".
fn ranges(numbers: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let told = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(told).collect::<Vec<_>>().join(", ")
}
