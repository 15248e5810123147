//! Reordered views: permuting axes, joining parts and splitting pairs changes only the index.

use std::ops::Range;

use crate::view::{StoredArray, View};

/// Returns all permutations of `n` axes, the identity first.
pub fn orders(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        let longer = |order: Vec<usize>| {
            let next = (0..n).filter(|axis| !order.contains(axis)).collect::<Vec<_>>();
            next.into_iter().map(move |axis| [order.as_slice(), &[axis]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

impl<'a> View<'a> {
    /// Applies `see` to the view and to its scales.
    fn each(mut self, see: impl Fn(Self) -> Self) -> Self {
        let scales = self.scales.take().map(|scales| Box::new(see(*scales)));
        Self { scales, ..see(self) }
    }

    /// Broadcasts to a shape as NumPy does: along missing axes and axes of length 1. `None` if the shapes do not fit.
    pub fn spread(mut self, shape: &[usize]) -> Option<Self> {
        let [part] = self.parts.as_mut_slice() else { return None };
        let lacking = shape.len().checked_sub(self.shape.len())?;
        let own = self.shape.iter().zip(&part.strides).zip(&shape[lacking..]);
        let stride = |((&own, &stride), &wanted): ((&usize, &usize), &usize)| match own == wanted {
            true => Some(stride),
            false => (own == 1).then_some(0),
        };
        let strides: Option<Vec<usize>> = own.map(stride).collect();
        part.strides = [vec![0; lacking], strides?].concat();
        part.columns = shape.last().copied().unwrap_or(1);
        self.shape = shape.to_vec();
        Some(self.settled())
    }

    /// Permutes the axes: axis `i` of the result is axis `order[i]` of the view. Axes missing in `order` must have
    /// length 1.
    pub fn permuted(self, order: &[usize]) -> Self {
        self.each(|one| one.permuted_alone(order))
    }

    fn permuted_alone(mut self, order: &[usize]) -> Self {
        let [part] = self.parts.as_mut_slice() else {
            unreachable!("axes are permuted before views are joined")
        };
        self.shape = order.iter().map(|&axis| self.shape[axis]).collect();
        part.strides = order.iter().map(|&axis| part.strides[axis]).collect();
        part.columns = self.shape.last().copied().unwrap_or(1);
        self.settled()
    }

    /// Reorders the entries of each row: entry `i` of the result is entry `order[i]`.
    ///
    /// # Panics
    /// If an index in `order` exceeds the row.
    pub fn reordered(self, order: &[usize]) -> Self {
        assert!(
            order.len() == self.width() && order.iter().all(|&at| at < self.width()),
            "an order of a row"
        );
        self.each(|mut one| {
            one.parts.iter_mut().for_each(|part| part.order = Some(order.into()));
            one.settled()
        })
    }

    /// Selects the entries `range` along `axis`.
    ///
    /// # Panics
    /// If the range exceeds the axis.
    pub fn slice(self, axis: usize, range: Range<usize>) -> Self {
        self.each(|one| one.sliced_alone(axis, range.clone()))
    }

    fn sliced_alone(mut self, axis: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.shape[axis], "{range:?} of {:?}", self.shape);
        let (is_last, along) = (axis + 1 == self.shape.len(), self.axis);
        self.shape[axis] = range.len();
        if axis == along && self.parts.len() > 1 {
            let end = |index: usize, parts: &[StoredArray]| {
                parts.get(index + 1).map_or(usize::MAX, |next| next.first)
            };
            let ends: Vec<usize> = (0..self.parts.len()).map(|index| end(index, &self.parts)).collect();
            let mut ends = ends.into_iter();
            self.parts
                .retain(|part| ends.next().is_some_and(|end| part.first < range.end && end > range.start));
            for part in &mut self.parts {
                let skipped = range.start.saturating_sub(part.first);
                part.start += skipped * part.strides[axis];
                part.first = (part.first + skipped) - range.start;
            }
            return self.settled();
        }
        for part in &mut self.parts {
            match &part.order {
                Some(order) if is_last => part.order = Some(order[range.clone()].into()),
                _ => part.start += range.start * part.strides[axis],
            }
            if is_last {
                part.columns = part.columns.saturating_sub(range.start).min(range.len());
            }
        }
        self.settled()
    }

    /// Selects entries along `axis` by index, in this order.
    ///
    /// # Panics
    /// If an index exceeds the axis.
    pub fn taken(self, axis: usize, indices: &[usize]) -> Self {
        let runs: Vec<&[usize]> = indices.chunk_by(|one, next| one + 1 == *next).collect();
        let (Some(first), Some(last)) = (indices.first(), indices.last()) else {
            return self.slice(axis, 0..0);
        };
        if runs.len() == 1 {
            return self.slice(axis, *first..last + 1);
        }
        if axis + 1 < self.shape.len() {
            let of_run = |run: &&[usize]| self.clone().slice(axis, run[0]..run[0] + run.len());
            return Self::joined(runs.iter().map(of_run).collect(), axis);
        }
        self.each(|one| one.columns_taken(indices))
    }

    fn columns_taken(mut self, indices: &[usize]) -> Self {
        for part in &mut self.parts {
            assert!(indices.iter().all(|&at| at < part.columns), "{indices:?} of {:?}", self.shape);
            let at = |&index: &usize| part.order.as_ref().map_or(index, |order| order[index]);
            part.order = Some(indices.iter().map(at).collect());
            part.columns = indices.len();
        }
        *self.shape.last_mut().expect("a view with columns has at least one axis") = indices.len();
        self.settled()
    }

    /// Merges `axis` and the next axis, in row-major order.
    ///
    /// # Panics
    /// If there is no next axis, or the first of the two is empty.
    pub fn merged(self, axis: usize) -> Self {
        if axis + 2 < self.shape.len() {
            let of_entry = |at: usize| self.clone().slice(axis, at..at + 1).without(axis);
            return Self::joined((0..self.shape[axis]).map(of_entry).collect(), axis);
        }
        self.each(|one| one.columns_merged(axis))
    }

    fn columns_merged(mut self, axis: usize) -> Self {
        let (outer, inner) = (self.shape[axis], self.shape[axis + 1]);
        for part in &mut self.parts {
            let stride = part.strides[axis + 1];
            let at = |column: usize| part.order.as_ref().map_or(column, |order| order[column]) * stride;
            let offset = |flat: usize| flat / inner * part.strides[axis] + at(flat % inner);
            let is_plain = part.order.is_none() && stride == 1 && part.strides[axis] == inner;
            part.order = (!is_plain).then(|| (0..outer * inner).map(offset).collect());
            part.strides[axis + 1] = 1;
            part.strides.remove(axis);
            part.columns = outer * inner;
        }
        self.shape[axis + 1] = outer * inner;
        self.shape.remove(axis);
        self.settled()
    }

    /// Removes an axis of length 1.
    fn without(self, axis: usize) -> Self {
        self.each(|mut one| {
            one.shape.remove(axis);
            for part in &mut one.parts {
                part.strides.remove(axis);
            }
            one.axis -= usize::from(one.axis > axis);
            one
        })
    }

    /// Truncates rows or pads them with zeros to `width` entries.
    pub fn with_width(self, width: usize) -> Self {
        self.each(|mut one| {
            let Some(last) = one.shape.last_mut() else { return one };
            *last = width;
            one.parts.iter_mut().for_each(|part| part.columns = part.columns.min(width));
            one.settled()
        })
    }

    /// Concatenates views along `axis`; their other axes must be equal. Along the last axis, the values are copied.
    ///
    /// # Panics
    /// If there are no views, or their shapes do not fit.
    pub fn joined(mut views: Vec<Self>, axis: usize) -> Self {
        let is_scaled = views.iter().any(|view| view.scales.is_some());
        let scale = |view: &mut Self| {
            let scales = view.scales.take().map(|scales| *scales);
            scales.unwrap_or_else(|| View::constant(&view.shape, 1.0))
        };
        let scales = is_scaled.then(|| views.iter_mut().map(scale).collect());
        let join = if axis + 1 == views[0].shape.len() { Self::columns_joined } else { Self::joined_alone };
        Self { scales: scales.map(|scales| Box::new(join(scales, axis))), ..join(views, axis) }
    }

    fn columns_joined(views: Vec<Self>, axis: usize) -> Self {
        let rows = views[0].rows();
        assert!(views.iter().all(|view| view.rows() == rows), "views of other axes");
        let widths = views.iter().map(Self::width);
        let shape = [&views[0].shape[..axis], &[widths.sum()]].concat();
        let mut values = vec![0.0; shape.iter().product()];
        let mut rest = values.as_mut_slice();
        for (row, view) in (0..rows).flat_map(|row| views.iter().map(move |view| (row, view))) {
            let (here, after) = rest.split_at_mut(view.width());
            view.read(row, 0..view.width(), here);
            rest = after;
        }
        View::owned(&shape, values)
    }

    fn joined_alone(views: Vec<Self>, axis: usize) -> Self {
        // A view can be concatenated along one axis only, so parts along another axis are copied into one part first.
        let as_one = |view: Self| match view.parts.len() == 1 || view.axis == axis {
            true => view,
            false => View::owned(&view.shape, view.to_vec()),
        };
        let mut views = views.into_iter().map(as_one);
        let mut all = views.next().expect("at least one view");
        all.axis = axis;
        for view in views {
            let fits = |at: usize| at == axis || all.shape[at] == view.shape[at];
            assert!(axis + 1 < all.shape.len() && (0..all.shape.len()).all(fits), "views of other axes");
            let before = all.shape[axis];
            all.shape[axis] += view.shape[axis];
            all.parts.extend(
                view.parts.into_iter().map(|part| StoredArray { first: before + part.first, ..part }),
            );
        }
        all.settled()
    }

    /// Determines which parts have the same order as their stored array.
    fn settled(mut self) -> Self {
        let is_alone = self.parts.len() == 1;
        for part in &mut self.parts {
            let mut expected = 1;
            let row_major = self.shape.iter().zip(&part.strides).rev().all(|(&length, &stride)| {
                let is_next = length == 1 || stride == expected;
                expected *= length;
                is_next
            });
            let is_whole = part.columns == self.shape.last().copied().unwrap_or(1);
            part.is_plain = is_alone && row_major && is_whole && part.order.is_none();
        }
        self
    }
}
