//! Products with a matrix, and sums of two rows, as engines compute them.

use xcheck_engine::numerics::Numerics;
use xcheck_engine::quant::{self, decode_matrix_row};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::weight::{DType, Matrix, StoredTensor};

use super::dice::{Law, normal};
use super::order::Adder;
use super::specimen::{Specimen, Store};

/// A product with a matrix that is to be computed.
pub struct Linear {
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub width: usize,
    pub outputs: usize,
    pub store: Store,
}

impl Linear {
    /// Weights that leave activations about as large as they are.
    pub fn new(law: Law, [tokens, width, outputs]: [usize; 3], store: Store, seed: u64) -> Self {
        let x = store.rounded(&law.numbers(tokens, width, seed));
        let mut w = normal(outputs * width, 1.0 / (width as f64).sqrt(), seed + 1);
        if law == Law::Positive {
            w.iter_mut().for_each(|w| *w = w.abs());
        }
        Self { x, w: store.rounded(&w), width, outputs, store }
    }

    pub fn scaled(self, by: f32) -> Self {
        Self { x: self.x.iter().map(|x| x * by).collect(), ..self }
    }

    pub fn tensor(&self) -> Tensor {
        Tensor::new(&[self.x.len() / self.width, self.width], self.x.clone())
    }

    pub fn traced(&self) -> Tensor {
        self.store.traced().linear(&self.tensor(), &matrix(&self.w, self.outputs))
    }

    pub fn by(&self, adder: &Adder) -> Vec<f32> {
        products(&self.x, &self.w, self.width, |x, w| self.store.round(adder.dot(x, w)))
    }

    /// With a bias for each output, as what is added to: the sum begins with it.
    pub fn begun_with(&self, bias: &[f32], order: &[usize]) -> Vec<f32> {
        let rows = self.w.chunks(self.width).zip(bias);
        let of_token = |x: &[f32]| -> Vec<f32> {
            let one = |(w, bias): (&[f32], &f32)| {
                self.store.round(order.iter().fold(*bias, |sum, &at| sum + x[at] * w[at]))
            };
            rows.clone().map(one).collect()
        };
        self.x.chunks(self.width).flat_map(of_token).collect()
    }

    pub fn traced_with(&self, bias: &[f32]) -> Tensor {
        self.store.traced().affine(&self.tensor(), &matrix(&self.w, self.outputs), bias)
    }

    pub fn specimen(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced(), own)
    }
}

/// `[T, outputs]` of rows of both sides.
pub fn products(x: &[f32], w: &[f32], width: usize, dot: impl Fn(&[f32], &[f32]) -> f32) -> Vec<f32> {
    x.chunks(width).flat_map(|x| w.chunks(width).map(|w| dot(x, w)).collect::<Vec<_>>()).collect()
}

pub fn matrix(w: &[f32], rows: usize) -> Matrix {
    let data: Vec<u8> = w.iter().flat_map(|x| x.to_le_bytes()).collect();
    let stored = StoredTensor { dtype: DType::F32, shape: vec![rows, w.len() / rows], data: data.into() };
    Matrix::from_stored(&stored).expect("a matrix")
}

/// The same weights, as ggml's blocks of 32 codes of 8 bits.
pub fn matrix_of_codes(w: &[f32], rows: usize) -> Matrix {
    let cols = w.len() / rows;
    let mut data = vec![0; rows * DType::Q8_0.bytes_for(cols).expect("whole blocks")];
    let bytes = data.len() / rows;
    for (w, out) in w.chunks(cols).zip(data.chunks_mut(bytes)) {
        quant::quantise_row(DType::Q8_0, w, out);
    }
    let stored = StoredTensor { dtype: DType::Q8_0, shape: vec![rows, cols], data: data.into() };
    Matrix::from_stored(&stored).expect("a matrix")
}

pub fn decoded(w: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; w.rows * w.cols];
    out.chunks_mut(w.cols).enumerate().for_each(|(row, out)| decode_matrix_row(w, row, out));
    out
}

/// `[T, outputs]` of rows of activations with rows of codes.
pub fn products_of_codes(x: &[f32], w: &Matrix, dot: impl Fn(&[f32], &[u8]) -> f32) -> Vec<f32> {
    x.chunks(w.cols).flat_map(|x| (0..w.rows).map(|row| dot(x, w.row(row))).collect::<Vec<_>>()).collect()
}

/// A block of activations: its scale before it is stored, and its codes, as ggml's x86 kernels make them.
fn block(x: &[f32]) -> (f32, Vec<f32>) {
    let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    (largest / 127.0, x.iter().map(|x| (x * (127.0 / largest)).round_ties_even()).collect())
}

/// A product of two rows of blocks. Codes meet codes as integers; `stored` is what a block's scale is kept as.
pub fn dot_of_codes(x: &[f32], w: &[u8], adder: &Adder, stored: impl Fn(f32) -> f32) -> f32 {
    let of_block = |(x, w): (&[f32], &[u8])| {
        let (step, codes) = block(x);
        let scale = half::f16::from_le_bytes([w[0], w[1]]).to_f32();
        let product: f32 = codes.iter().zip(&w[2..]).map(|(x, &w)| x * f32::from(w as i8)).sum();
        stored(step) * scale * product
    };
    let terms: Vec<f32> = x.chunks(32).zip(w.chunks(34)).map(of_block).collect();
    adder.sum(&terms)
}
