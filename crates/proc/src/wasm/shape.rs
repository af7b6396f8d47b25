//! What a module may look like, so that compiling it ends soon.
//!
//! A compiler's work grows with the square of a function: each of its blocks may have to know where each
//! of its locals is. A function of 1 MiB with as many nested loops and locals as go into it would take
//! hours, and all memory. So each function is bounded, and the sum of what they may cost.

use wasmparser::{Parser, Payload};

use super::ModuleError;

/// Bounds of a module's functions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Functions.
    pub functions: u32,
    /// Bytes of a function's body.
    pub body_bytes: u32,
    /// Locals that a function declares.
    pub locals: u32,
    /// Bytes of a body times its locals, of all functions together.
    pub cost: u64,
}

impl Default for Shape {
    /// Several times what a compiler makes of a program of 1 MiB; what is worst within these bounds takes
    /// seconds of one core (decision 77).
    fn default() -> Self {
        Self {
            functions: 16 << 10,
            body_bytes: 128 << 10,
            locals: 4096,
            cost: 64 << 20,
        }
    }
}

impl Shape {
    /// Looks at the code of a module. Whatever else is wrong with it is found when it is compiled.
    ///
    /// # Errors
    /// `Shape`: it has too much; `Invalid`: it is not a module.
    pub fn check(&self, module: &[u8]) -> Result<(), ModuleError> {
        let mut cost = 0;
        for payload in Parser::new(0).parse_all(module) {
            match payload.map_err(invalid)? {
                Payload::CodeSectionStart { count, .. } => {
                    at_most("functions", count.into(), self.functions.into())?;
                }
                Payload::CodeSectionEntry(body) => {
                    let body_bytes = body.range().len() as u64;
                    at_most("bytes in a function", body_bytes, self.body_bytes.into())?;
                    let mut locals = 0_u64;
                    for group in body.get_locals_reader().map_err(invalid)? {
                        let (count, _) = group.map_err(invalid)?;
                        locals += u64::from(count);
                    }
                    at_most("locals in a function", locals, self.locals.into())?;
                    // One without locals has values between its instructions all the same.
                    cost += body_bytes * (locals + 1);
                    at_most("bytes times locals in functions", cost, self.cost)?;
                }
                _ => {}
            }
        }
        Ok(())
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
