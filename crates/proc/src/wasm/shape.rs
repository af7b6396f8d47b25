//! What a module may look like, so that compiling it ends soon.
//!
//! A compiler's work grows with more than the size of a function: with the square of how deep loops
//! are in each other, as measured, and with their number times the square of the locals that they
//! use. 500 loops in each other over 50 locals are 4 KiB and take seconds; 1 MiB could take days,
//! and all memory. So each function is bounded, and the sum of what they may cost.

use wasmparser::{FunctionBody, Operator, Parser, Payload};

use super::ModuleError;

/// Bounds of a module's functions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Functions.
    pub functions: u32,
    /// Bytes of a function's body.
    pub body_bytes: u32,
    /// Locals of a function, its parameters among them.
    pub locals: u32,
    /// Loops in each other.
    pub loop_depth: u32,
    /// Loops of a function times the square of its locals, of all functions together.
    pub loop_cost: u64,
    /// Bytes of a body times its locals, of all functions together.
    pub byte_cost: u64,
}

impl Default for Shape {
    /// Several times what a compiler makes of a program of 1 MiB; what is worst within these bounds
    /// takes seconds of one core (decision 77).
    fn default() -> Self {
        Self {
            functions: 16 << 10,
            body_bytes: 128 << 10,
            locals: 2048,
            loop_depth: 32,
            loop_cost: 64 << 20,
            byte_cost: 64 << 20,
        }
    }
}

impl Shape {
    /// Looks at the code of a module. Whatever else is wrong with it is found when it is compiled.
    ///
    /// # Errors
    /// `Shape`: it has too much; `Invalid`: it is not a module.
    pub fn check(&self, module: &[u8]) -> Result<(), ModuleError> {
        // Parameters of each type, and the type of each function.
        let (mut parameters, mut types) = (Vec::new(), Vec::new());
        let (mut byte_cost, mut loop_cost, mut number) = (0, 0, 0);
        for payload in Parser::new(0).parse_all(module) {
            match payload.map_err(invalid)? {
                Payload::TypeSection(section) => {
                    for of_type in section.into_iter_err_on_gc_types() {
                        parameters.push(of_type.map_err(invalid)?.params().len() as u64);
                    }
                }
                Payload::FunctionSection(section) => {
                    at_most("functions", section.count().into(), self.functions.into())?;
                    for index in section {
                        types.push(index.map_err(invalid)? as usize);
                    }
                }
                Payload::CodeSectionStart { count, .. } => {
                    at_most("functions", count.into(), self.functions.into())?;
                }
                Payload::CodeSectionEntry(body) => {
                    let body_bytes = body.range().len() as u64;
                    at_most("bytes in a function", body_bytes, self.body_bytes.into())?;
                    let of_type = types.get(number).and_then(|index| parameters.get(*index));
                    number += 1;
                    let mut locals = of_type.copied().unwrap_or(0);
                    for group in body.get_locals_reader().map_err(invalid)? {
                        let (count, _) = group.map_err(invalid)?;
                        locals += u64::from(count);
                    }
                    at_most("locals in a function", locals, self.locals.into())?;
                    // One without locals has values between its instructions all the same.
                    byte_cost += body_bytes * (locals + 1);
                    let bytes = "bytes times locals in functions";
                    at_most(bytes, byte_cost, self.byte_cost)?;
                    let loops = Loops::of(&body).map_err(invalid)?;
                    at_most("loops in each other", loops.depth, self.loop_depth.into())?;
                    loop_cost += loops.count * (locals + 1).pow(2);
                    let loops = "loops times the square of locals in functions";
                    at_most(loops, loop_cost, self.loop_cost)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Loops of a function.
#[derive(Default)]
struct Loops {
    count: u64,
    /// Most that are in each other.
    depth: u64,
}

impl Loops {
    fn of(body: &FunctionBody<'_>) -> Result<Self, wasmparser::BinaryReaderError> {
        let mut loops = Self::default();
        // Whether each block that is open is a loop.
        let mut open = Vec::new();
        let mut depth = 0;
        for operator in body.get_operators_reader()? {
            match operator? {
                Operator::Loop { .. } => {
                    open.push(true);
                    loops.count += 1;
                    depth += 1;
                    loops.depth = loops.depth.max(depth);
                }
                Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => {
                    open.push(false);
                }
                // The last one ends the function.
                Operator::End => depth -= u64::from(open.pop() == Some(true)),
                _ => {}
            }
        }
        Ok(loops)
    }
}

fn at_most(what: &'static str, found: u64, most: u64) -> Result<(), ModuleError> {
    match found > most {
        true => Err(ModuleError::Shape { what, found, most }),
        false => Ok(()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: wasmparser::BinaryReaderError) -> ModuleError {
    ModuleError::Invalid(error.to_string())
}
