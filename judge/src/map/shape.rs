//! Axes of a stored array, found from its shape, and the part of the array that is a tap.

use crate::checkpoint::{Point, TapAxis};
use crate::dump::ArrayPart;
use crate::map::rule::FusedForm;

/// Known head sizes of a model. Array shapes are checked against them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadSizes {
    /// Number of query heads.
    pub heads: Option<usize>,
    /// Number of key-value heads.
    pub kv_heads: Option<usize>,
    /// Number of values per head.
    pub head_dim: Option<usize>,
}

impl HeadSizes {
    /// Makes sizes that are all known.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self { heads: Some(heads), kv_heads: Some(kv_heads), head_dim: Some(head_dim) }
    }

    /// Returns `self`, with each missing size taken from `others`.
    pub(super) fn or(self, others: Self) -> Self {
        Self {
            heads: self.heads.or(others.heads),
            kv_heads: self.kv_heads.or(others.kv_heads),
            head_dim: self.head_dim.or(others.head_dim),
        }
    }

    /// Returns the name and the value of each head size.
    pub(super) fn named(self) -> [(&'static str, Option<usize>); 3] {
        [("heads", self.heads), ("kv_heads", self.kv_heads), ("head_dim", self.head_dim)]
    }
}

/// The lengths of the pass that an array belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassExtent {
    /// Number of tokens of the pass.
    pub(crate) tokens: usize,
    /// Number of positions that attention sees, including earlier passes.
    pub(crate) seen: usize,
    pub(crate) sizes: HeadSizes,
}

/// The part of a stored array that is a tap.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TapPart {
    pub(crate) of: Option<ArrayPart>,
    pub(crate) shape: Vec<usize>,
    pub(crate) axes: Option<Vec<TapAxis>>,
    pub(crate) rows: Option<Vec<usize>>,
}

/// Returns the axis orders in which engines store a tap, most likely first. For a tap with heads, `Hidden`
/// means all heads merged.
fn layouts(point: Point) -> Vec<Vec<TapAxis>> {
    use TapAxis::*;
    let own = point.axes();
    let mut layouts = vec![own.to_vec()];
    match *own {
        [rows, heads @ (Head | KvHead), HeadDim] => {
            layouts.push(vec![rows, Hidden]);
            layouts.push(vec![heads, rows, HeadDim]);
        }
        [Token, Hidden] if matches!(point, Point::AttnContext | Point::AttnSubNorm) => {
            layouts.push(vec![Token, Head, HeadDim]);
            layouts.push(vec![Head, Token, HeadDim]);
        }
        _ => {}
    }
    layouts
}

impl PassExtent {
    /// Returns true if an axis of a tap may have this length.
    fn may_be(&self, point: Point, axis: TapAxis, length: usize) -> bool {
        let HeadSizes { heads, kv_heads, head_dim } = self.sizes;
        let is = |known: Option<usize>| known.is_none_or(|known| known == length);
        let has_heads = point.axes().contains(&TapAxis::HeadDim);
        match axis {
            TapAxis::Token => length == self.tokens || length == 1 && keeps_last(point),
            TapAxis::Batch => length == 1,
            _ if point.has_own_heads() => length > 0,
            TapAxis::Head => is(heads),
            TapAxis::KvHead => is(kv_heads),
            TapAxis::HeadDim => is(head_dim),
            TapAxis::Hidden if has_heads => match (self.heads_of(point), head_dim) {
                (Some(heads), Some(head_dim)) => length == heads * head_dim,
                (_, head_dim) => head_dim.is_none_or(|head_dim| length.is_multiple_of(head_dim)),
            },
            _ => length > 0,
        }
    }

    fn heads_of(&self, point: Point) -> Option<usize> {
        if heads_axis(point) == TapAxis::Head { self.sizes.heads } else { self.sizes.kv_heads }
    }

    /// Returns the number of heads and the head size of a tap whose rows have `width` values.
    fn heads(&self, point: Point, width: usize) -> Result<[usize; 2], String> {
        let HeadSizes { head_dim, .. } = self.sizes;
        let by_heads = || self.heads_of(point).filter(|&heads| heads > 0).map(|heads| width / heads);
        match head_dim.or_else(by_heads) {
            Some(head_dim) if head_dim > 0 && width.is_multiple_of(head_dim) => {
                Ok([width / head_dim, head_dim])
            }
            Some(head_dim) => {
                Err(format!("a row of {width} values cannot be split into heads of {head_dim}"))
            }
            None => Err("the number of heads is unknown; give --model, or set head_dim in the map".into()),
        }
    }

    /// Returns the tap for a whole array.
    ///
    /// # Errors
    /// If the shape does not fit the tap; the message describes the problem.
    pub(super) fn whole(
        &self,
        point: Point,
        shape: &[usize],
        given: Option<&[TapAxis]>,
        padded: bool,
    ) -> Result<TapPart, String> {
        let fits = |layout: &&Vec<TapAxis>| {
            let lengths = without_leading_ones(shape, layout.len());
            lengths.is_some_and(|lengths| {
                layout.iter().zip(lengths).all(|(&axis, &length)| self.may_be(point, axis, length))
            })
        };
        let known = given.map_or_else(|| layouts(point), |axes| vec![axes.to_vec()]);
        let layout = known.iter().find(fits).ok_or_else(|| self.misfit(point, shape, &known[0]))?;
        let lengths = &shape[shape.len() - layout.len()..];
        let (mut axes, mut seen) = (Vec::new(), Vec::new());
        for (&axis, &length) in layout.iter().zip(lengths) {
            if axis == TapAxis::Hidden && point.axes().contains(&TapAxis::HeadDim) {
                axes.extend([heads_axis(point), TapAxis::HeadDim]);
                seen.extend(self.heads(point, length)?);
            } else {
                axes.push(axis);
                seen.push(length);
            }
        }
        let ends: Vec<usize> =
            axes.iter().zip(&seen).map(|(&axis, &length)| self.end(axis, length, padded)).collect();
        let is_cut = ends != seen;
        let of = (is_cut || seen != shape).then(|| ArrayPart {
            shape: seen,
            start: None,
            end: is_cut.then(|| ends.clone()),
        });
        let last =
            axes.iter().zip(&ends).any(|(&axis, &length)| axis == TapAxis::Token && length < self.tokens);
        let rows = last.then(|| vec![self.tokens - 1]);
        Ok(TapPart { of, shape: ends, axes: (axes != point.axes()).then_some(axes), rows })
    }

    /// Returns the length of an axis without padding. Only a padded key axis is shortened, to the number of keys that
    /// the pass sees.
    fn end(&self, axis: TapAxis, length: usize, padded: bool) -> usize {
        if padded && axis == TapAxis::Key { length.min(self.seen) } else { length }
    }

    fn misfit(&self, point: Point, shape: &[usize], axes: &[TapAxis]) -> String {
        let sizes = self.sizes.named().into_iter();
        let sizes: String = sizes.filter_map(|(name, size)| Some(format!(", {name} {}", size?))).collect();
        let axes = TapAxis::names(axes.iter().copied());
        format!(
            "shape {shape:?} is not [{}], as expected for {point} in a pass of {} tokens{sizes}; state the \
             axes in the map, or find the tap with xcheck identify",
            axes.join(", "),
            self.tokens
        )
    }

    /// Returns the taps of a fused array, in order.
    ///
    /// # Errors
    /// If the shape does not fit these taps; the message describes the problem.
    pub(super) fn parts(
        &self,
        points: &[Point],
        form: FusedForm,
        shape: &[usize],
        given: Option<&[TapAxis]>,
    ) -> Result<Vec<TapPart>, String> {
        let elements: usize = shape.iter().product();
        let refuse =
            |what: &str| format!("shape {shape:?} cannot have {what} in a pass of {} tokens", self.tokens);
        if form == FusedForm::Stacked {
            return self.stacked(points, shape, given);
        }
        let axes = given.unwrap_or(&[TapAxis::Token, TapAxis::Hidden]);
        let lengths = match given {
            Some(axes) => {
                without_leading_ones(shape, axes.len()).ok_or_else(|| refuse("these axes"))?.to_vec()
            }
            None if elements.is_multiple_of(self.tokens) => vec![self.tokens, elements / self.tokens],
            None => return Err(refuse("rows of tokens")),
        };
        let at = axes
            .iter()
            .position(|&axis| axis == TapAxis::Hidden)
            .ok_or_else(|| refuse("axes without 'hidden', which merged heads need"))?;
        let inner = self.cuts(points, form, lengths[at]).ok_or_else(|| refuse("these taps side by side"))?;
        let outer = |from: &[usize]| from.to_vec();
        let part =
            |FusedAxisPart { lengths: inner, axes: names, range: (along, from, to) }: FusedAxisPart| {
                let all = [outer(&lengths[..at]), inner, outer(&lengths[at + 1..])].concat();
                let (mut start, mut end) = (vec![0; all.len()], all.clone());
                (start[at + along], end[at + along]) = (from, to);
                let cut = start.iter().zip(&end).map(|(start, end)| end - start).collect();
                let axes = [axes[..at].to_vec(), names, axes[at + 1..].to_vec()].concat();
                TapPart {
                    of: Some(ArrayPart { shape: all, start: Some(start), end: Some(end) }),
                    shape: cut,
                    axes: Some(axes),
                    rows: None,
                }
            };
        Ok(inner.into_iter().map(part).collect())
    }

    /// Returns the parts of a fused axis, one per tap.
    fn cuts(&self, points: &[Point], form: FusedForm, width: usize) -> Option<Vec<FusedAxisPart>> {
        let has_heads = |point: &Point| point.axes().contains(&TapAxis::HeadDim);
        if !points.iter().any(has_heads) {
            let each = width.checked_div(points.len()).filter(|each| each * points.len() == width)?;
            let own = |point: &Point| point.axes().last().copied().unwrap_or(TapAxis::Hidden);
            let cut = |(index, point): (usize, &Point)| match form {
                FusedForm::Interleaved => FusedAxisPart {
                    lengths: vec![each, points.len()],
                    axes: vec![own(point), TapAxis::Batch],
                    range: (1, index, index + 1),
                },
                _ => FusedAxisPart {
                    lengths: vec![width],
                    axes: vec![own(point)],
                    range: (0, index * each, (index + 1) * each),
                },
            };
            return Some(points.iter().enumerate().map(cut).collect());
        }
        let HeadSizes { heads, kv_heads, head_dim } = self.sizes;
        let (heads, kv_heads, head_dim) = (heads?, kv_heads?, head_dim?);
        let group = heads.checked_div(kv_heads)?;
        let by_head = form == FusedForm::Heads;
        let count = |point: &Point| match (heads_axis(*point) == TapAxis::Head, by_head) {
            (true, false) => heads,
            (true, true) => group,
            (false, false) => kv_heads,
            (false, true) => 1,
        };
        let total: usize = points.iter().map(count).sum();
        let outer = if by_head { kv_heads } else { 1 };
        if width != outer * total * head_dim {
            return None;
        }
        let mut first = 0;
        let cut = |point: &Point| {
            let range = (first, first + count(point));
            first = range.1;
            if by_head {
                let axes = vec![TapAxis::KvHead, TapAxis::Group, TapAxis::HeadDim];
                return FusedAxisPart {
                    lengths: vec![kv_heads, total, head_dim],
                    axes,
                    range: (1, range.0, range.1),
                };
            }
            FusedAxisPart {
                lengths: vec![total, head_dim],
                axes: vec![heads_axis(*point), TapAxis::HeadDim],
                range: (0, range.0, range.1),
            }
        };
        Some(points.iter().map(cut).collect())
    }

    /// Returns taps of equal shape that are stacked along an additional first axis. `given` lists the axes of one tap.
    /// The tap determines whether a head axis means query heads or key-value heads.
    fn stacked(
        &self,
        points: &[Point],
        shape: &[usize],
        given: Option<&[TapAxis]>,
    ) -> Result<Vec<TapPart>, String> {
        let count = points.len();
        let (first, each) = shape.split_first().filter(|(first, _)| **first == count).ok_or_else(|| {
            format!("shape {shape:?} does not start with {count}, the number of stacked taps")
        })?;
        let part = |(index, &point): (usize, &Point)| {
            let own = |&axis: &TapAxis| match axis {
                TapAxis::Head | TapAxis::KvHead if point.axes().contains(&TapAxis::HeadDim) => {
                    heads_axis(point)
                }
                other => other,
            };
            let given: Option<Vec<TapAxis>> = given.map(|axes| axes.iter().map(own).collect());
            let whole = self.whole(point, each, given.as_deref(), false)?;
            let one = |inner: &[usize], outer: usize| [&[outer], inner].concat();
            let all = whole.of.map_or(whole.shape, |of| of.shape);
            let zeros = vec![0; all.len()];
            let of = ArrayPart {
                shape: one(&all, *first),
                start: Some(one(&zeros, index)),
                end: Some(one(&all, index + 1)),
            };
            let axes = whole.axes.unwrap_or_else(|| point.axes().to_vec());
            let axes = [vec![TapAxis::Batch], axes].concat();
            Ok(TapPart { of: Some(of), shape: one(&all, 1), axes: Some(axes), rows: whole.rows })
        };
        points.iter().enumerate().map(part).collect()
    }
}

/// Returns true if an array of this shape is read in the tap's own axis order without stated axes.
pub fn is_plain(point: Point, shape: &[usize], tokens: usize, sizes: HeadSizes) -> bool {
    let part = PassExtent { tokens, seen: usize::MAX, sizes }.whole(point, shape, None, false);
    part.is_ok_and(|part| {
        part.axes.is_none_or(|axes| axes == [TapAxis::Token, TapAxis::Head, TapAxis::HeadDim])
    })
}

/// Returns the head axis of a tap.
fn heads_axis(point: Point) -> TapAxis {
    if point.axes().contains(&TapAxis::Head) { TapAxis::Head } else { TapAxis::KvHead }
}

/// A part of a fused axis: the axis split into components, and a range along one of them.
struct FusedAxisPart {
    lengths: Vec<usize>,
    axes: Vec<TapAxis>,
    range: (usize, usize, usize),
}

/// Returns true for taps that many engines compute only for the last row: the end of the last layer, and
/// everything after it.
fn keeps_last(point: Point) -> bool {
    matches!(point.axes(), [TapAxis::Token, TapAxis::Hidden | TapAxis::Ffn | TapAxis::Vocab])
}

/// Returns the last `axes` lengths; `None` if a length before them is not 1.
fn without_leading_ones(shape: &[usize], axes: usize) -> Option<&[usize]> {
    let (leading, rest) = shape.split_at_checked(shape.len().checked_sub(axes)?)?;
    leading.iter().all(|&length| length == 1).then_some(rest)
}
