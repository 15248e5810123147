//! The golden files of `reference-scripts/vectors/make_quant_vectors.py`.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use xcheck_engine::quant;
use xcheck_engine::weight::DType;

/// Rows of bytes or of numbers.
#[derive(Clone)]
pub struct Rows<T> {
    data: Vec<T>,
    width: usize,
}

impl<T> Rows<T> {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.data.chunks_exact(self.width)
    }

    pub fn row(&self, index: usize) -> &[T] {
        &self.data[index * self.width..][..self.width]
    }

    /// Changes each row.
    pub fn each_row(&mut self, change: impl FnMut(&mut [T])) {
        self.each_chunk(self.width, change);
    }

    /// Changes each piece of that length.
    pub fn each_chunk(&mut self, len: usize, change: impl FnMut(&mut [T])) {
        self.data.chunks_exact_mut(len).for_each(change);
    }
}

/// What is known of one type of weights.
pub struct Vectors {
    pub weights: Rows<u8>,
    /// The same rows decoded.
    pub values: Rows<f32>,
    /// For prefixes of that many elements: dot products, a row per row of weights, a column per row of activations.
    pub dots: Vec<(usize, Rows<f32>)>,
    /// For that many tokens: the matrix product, a row per token; of all rows of weights, or all but the last.
    pub products: Vec<(usize, Rows<f32>)>,
}

/// Reads the file of one type.
pub fn vectors(dtype: DType) -> Vectors {
    let file = read(dtype.name());
    let tensors = SafeTensors::deserialize(&file).expect("it is sound");
    let numbered = |kind: &str| {
        let named = tensors
            .names()
            .into_iter()
            .filter_map(|name| Some((name.strip_prefix(kind)?.parse().ok()?, name)));
        let found: Vec<_> = named.map(|(number, name)| (number, floats(&tensors, name))).collect();
        assert!(found.len() > 1, "{dtype}: nothing to compare with");
        found
    };
    Vectors {
        weights: bytes(&tensors, "weights"),
        values: floats(&tensors, "values"),
        dots: numbered("dot."),
        products: [numbered("product."), numbered("ragged.")].concat(),
    }
}

/// Rows of activations before they are quantised.
pub fn activations() -> Rows<f32> {
    floats(&SafeTensors::deserialize(&read("activations")).expect("it is sound"), "input")
}

/// The same, quantised by ggml.
pub fn quantised(dtype: DType) -> Rows<u8> {
    let name = if dtype == DType::Q8_K { "q8_K" } else { dtype.name() };
    bytes(&SafeTensors::deserialize(&read("activations")).expect("it is sound"), name)
}

/// Bit for bit the same, where all NaN are one.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// The index of the first row that does not decode to `values`.
pub fn first_wrong_row(dtype: DType, weights: &Rows<u8>, values: &Rows<f32>) -> Option<usize> {
    let decoded = |row: &[u8], len: usize| {
        let mut out = vec![f32::NAN; len];
        quant::decode_row(dtype, row, &mut out);
        out
    };
    assert_eq!(weights.iter().len(), values.iter().len());
    let mut rows = weights.iter().zip(values.iter());
    rows.position(|(row, values)| {
        !decoded(row, values.len()).iter().zip(values).all(|(&ours, &theirs)| same(ours, theirs))
    })
}

fn read(name: &str) -> Vec<u8> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/quant"));
    fs::read(folder.join(format!("{name}.safetensors"))).expect("the golden file is there")
}

fn bytes(tensors: &SafeTensors, name: &str) -> Rows<u8> {
    let tensor = tensors.tensor(name).expect("it is in the file");
    Rows { data: tensor.data().to_vec(), width: tensor.shape()[1] }
}

fn floats(tensors: &SafeTensors, name: &str) -> Rows<f32> {
    let tensor = tensors.tensor(name).expect("it is in the file");
    let (elements, _) = tensor.data().as_chunks::<4>();
    Rows { data: elements.iter().map(|&bits| f32::from_le_bytes(bits)).collect(), width: tensor.shape()[1] }
}
