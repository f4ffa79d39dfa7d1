//! Gradients by finite differences, and by an op's own account.

use crate::random::Random;
use crate::samples::random_tensor;
use planc_ir::finish::unique_names;
use planc_ir::interp::evaluate;
use planc_ir::ops::{Op, Vjp};
use planc_ir::verify::verify;
use planc_ir::weights::InMemory;
use planc_ir::{DType, Graph, OpError, Tensor, TensorType, ValueId};

/// An op with operands, some of which are constants of the graph.
#[derive(Debug)]
pub struct Case {
    pub op: Op,
    pub inputs: Vec<Tensor>,
    pub known: Vec<usize>,
}

impl Case {
    pub fn new(op: impl Into<Op>, inputs: Vec<Tensor>) -> Self {
        Self { op: op.into(), inputs, known: Vec::new() }
    }

    /// The operands that a gradient can be asked of.
    pub fn variables(&self) -> Vec<bool> {
        let variable = |(i, t): (usize, &Tensor)| t.dtype().is_float() && !self.known.contains(&i);
        self.inputs.iter().enumerate().map(variable).collect()
    }

    pub fn result_types(&self) -> Vec<TensorType> {
        let types: Vec<TensorType> = self.inputs.iter().map(|t| t.ty().clone()).collect();
        let known: Vec<Option<&Tensor>> = self.inputs.iter().map(Some).collect();
        self.op.infer(&types, &known).unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// Whether there is anything to differentiate: a float that depends on a float.
    pub fn is_continuous(&self) -> bool {
        self.variables().contains(&true) && self.result_types().iter().any(|t| t.dtype.is_float())
    }
}

/// A graph that applies an op and goes back through it.
pub struct Differentiated {
    pub graph: Graph,
    pub inputs: Vec<ValueId>,
    pub results: Vec<ValueId>,
    pub gradients: Vec<Option<ValueId>>,
    /// How many nodes are not part of the gradient.
    pub forward: usize,
}

/// Goes back through an op to the wanted operands. The graph's inputs are the operands that are not known,
/// then the gradients of the float results.
pub fn differentiate(case: &Case, wanted: &[bool]) -> Result<Differentiated, OpError> {
    let mut graph = Graph::new("gradient");
    let inputs: Vec<ValueId> = (case.inputs.iter().enumerate())
        .map(|(i, t)| {
            if case.known.contains(&i) {
                graph.constant(format!("x{i}"), t.clone())
            } else {
                graph.input(format!("x{i}"), t.ty().clone())
            }
        })
        .collect();
    let results = graph.push("node", case.op.clone(), &inputs, &[]).unwrap();
    let gradients = (results.iter().enumerate())
        .map(|(i, &v)| {
            let ty = graph.ty(v).clone();
            ty.dtype.is_float().then(|| graph.input(format!("g{i}"), ty))
        })
        .collect();
    let forward = graph.nodes.len();
    let (outputs, wanted) = (results.clone(), wanted.to_vec());
    let mut v =
        Vjp { graph: &mut graph, name: "back", inputs: inputs.clone(), outputs, gradients, wanted };
    let gradients = case.op.vjp(&mut v)?;
    assert_eq!(gradients.len(), inputs.len(), "{case:?}");
    for (&x, gradient) in inputs.iter().zip(&gradients) {
        if let Some(g) = *gradient {
            assert_eq!(graph.ty(g), graph.ty(x), "the gradient's type, of {case:?}");
        }
    }
    graph.outputs = gradients.iter().copied().flatten().collect();
    unique_names(&mut graph);
    assert_eq!(verify(&graph), [], "{case:?}");
    Ok(Differentiated { graph, inputs, results, gradients, forward })
}

/// The gradients by the op's own account, evaluated.
fn by_rule(
    case: &Case,
    of_results: &[Tensor],
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>, OpError> {
    let d = differentiate(case, wanted)?;
    let operands = case.inputs.iter().enumerate().filter(|(i, _)| !case.known.contains(i));
    let floats = of_results.iter().filter(|t| t.dtype().is_float());
    let inputs: Vec<Tensor> = operands.map(|(_, t)| t).chain(floats).cloned().collect();
    let mut values = evaluate(&d.graph, &inputs, &InMemory)
        .unwrap_or_else(|e| panic!("{case:?}: {e}"))
        .into_iter();
    Ok(d.gradients.iter().map(|g| g.and_then(|_| values.next())).collect())
}

/// The float results, weighed.
fn weighed(op: &Op, inputs: &[Tensor], weights: &[Tensor]) -> f64 {
    let results = op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap();
    let floats = results.iter().zip(weights).filter(|(t, _)| t.dtype().is_float());
    let products = floats.flat_map(|(t, w)| {
        t.to_f64s().into_iter().zip(w.to_f64s()).map(|(x, w)| x * w).collect::<Vec<_>>()
    });
    products.sum()
}

/// The distance of the differences; half of it is the other one.
const STEP: f64 = 1e-4;

/// How many derivatives were compared, and how many could not be for a kink or jump close by.
#[derive(Debug, Default)]
pub struct Tally {
    pub compared: usize,
    pub skipped: usize,
}

impl Tally {
    /// Fails if little was compared.
    pub fn assert_mostly_compared(&self) {
        assert!(self.compared > 20 * self.skipped, "{self:?}");
    }
}

/// Compares an op's gradient with central differences at two distances.
///
/// # Errors
/// If the op says that it has no gradient.
pub fn check(case: &Case, random: &mut Random, tally: &mut Tally) -> Result<(), OpError> {
    let weights: Vec<Tensor> = (case.result_types().iter())
        .map(|t| {
            if t.dtype.is_float() {
                random_tensor(random, &t.shape)
            } else {
                Tensor::zeros(t.clone()).unwrap()
            }
        })
        .collect();
    let wanted = case.variables();
    let gradients = by_rule(case, &weights, &wanted)?;
    for i in (0..wanted.len()).filter(|&i| wanted[i]) {
        let mut alone = vec![false; wanted.len()];
        alone[i] = true;
        let one = by_rule(case, &weights, &alone)?;
        assert_eq!(one[i], gradients[i], "operand {i} wanted alone, of {case:?}");
        assert_eq!(one.iter().flatten().count(), usize::from(one[i].is_some()), "{case:?}");
        let exact = gradients[i].as_ref().map(Tensor::to_f64s);
        for at in 0..case.inputs[i].len() {
            let mut inputs = case.inputs.clone();
            let mut moved = |by: f64| {
                let x = &case.inputs[i];
                let element = |k| x.f64_at(k) + if k == at { by } else { 0.0 };
                inputs[i] = Tensor::from_f64(x.ty().clone(), element).unwrap();
                weighed(&case.op, &inputs, &weights)
            };
            let mut slope = |h: f64| (moved(h) - moved(-h)) / (2.0 * h);
            let (far, near) = (slope(STEP), slope(STEP / 2.0));
            let scale = near.abs().max(1.0);
            if (far - near).abs() > 1e-3 * scale {
                tally.skipped += 1;
                continue;
            }
            // The error of each grows with the square of the distance.
            let wanted = (4.0 * near - far) / 3.0;
            let found = exact.as_ref().map_or(0.0, |g| g[at]);
            let close = (found - wanted).abs() < 1e-6 * scale;
            assert!(close, "operand {i}, element {at} is {found}, not {wanted}, of {case:?}");
            tally.compared += 1;
        }
    }
    Ok(())
}

/// The case with its floats in another type.
pub fn in_type(case: &Case, dtype: DType) -> Option<Case> {
    let cast = |t: &Tensor| if t.dtype().is_float() { t.cast(dtype).unwrap() } else { t.clone() };
    let inputs: Vec<Tensor> = case.inputs.iter().map(cast).collect();
    let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
    let known: Vec<Option<&Tensor>> = inputs.iter().map(Some).collect();
    case.op.infer(&types, &known).ok()?;
    Some(Case { op: case.op.clone(), inputs, known: case.known.clone() })
}
