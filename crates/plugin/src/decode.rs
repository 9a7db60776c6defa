//! What an instruction is to the model, decided once, at translation.

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, MemorySize, Mnemonic, OpKind, Register,
};

/// Instructions that need more than their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing special.
    Plain,
    /// Division or square root.
    Divide,
    /// `pause`, the body of spinning loops.
    Pause,
    /// `syscall` (its return is priced with it).
    Syscall,
    /// `iret`: ends an exception or interrupt.
    InterruptReturn,
    /// `invlpg` of the address in this general register; 16 where it is addressed otherwise.
    FlushPage(u32),
    /// `mov cr3, r`.
    PageTableSwitch,
    /// `mov cr4, r`: may drop global translations.
    FlushAll,
    /// `mov r, cr2`: a page fault is being handled.
    ReadsFaultAddress,
    /// Port input or output.
    Port,
    /// A store past the caches.
    NonTemporalStore,
    /// A string instruction with a repeat prefix: one per access, not one per instruction.
    RepeatString,
    /// A measuring-window marker and its word.
    Marker(u32),
}

/// What translation needs to know of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The class.
    pub kind: Kind,
    /// Floating-point operations it performs.
    pub flops: u32,
}

/// Decodes one 64-bit instruction. What does not decode counts as plain.
pub fn decode(bytes: &[u8]) -> Decoded {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let instruction = decoder.decode();
    Decoded {
        kind: kind(&instruction),
        flops: flops(&instruction),
    }
}

fn kind(instruction: &Instruction) -> Kind {
    use Mnemonic as M;
    let control = |operand| match (instruction.op_kind(operand), operand) {
        (OpKind::Register, 0) => instruction.op0_register(),
        (OpKind::Register, 1) => instruction.op1_register(),
        _ => Register::None,
    };
    // `movsd` and `cmpsd` are SSE instructions too; those are no string instructions.
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    if repeated && instruction.is_string_instruction() {
        return Kind::RepeatString;
    }
    match instruction.mnemonic() {
        M::Div
        | M::Idiv
        | M::Fdiv
        | M::Fdivp
        | M::Fdivr
        | M::Fdivrp
        | M::Fsqrt
        | M::Divss
        | M::Divsd
        | M::Divps
        | M::Divpd
        | M::Sqrtss
        | M::Sqrtsd
        | M::Sqrtps
        | M::Sqrtpd
        | M::Vdivss
        | M::Vdivsd
        | M::Vdivps
        | M::Vdivpd
        | M::Vsqrtss
        | M::Vsqrtsd
        | M::Vsqrtps
        | M::Vsqrtpd => Kind::Divide,
        M::Pause => Kind::Pause,
        M::Syscall | M::Sysenter => Kind::Syscall,
        M::Iret | M::Iretd | M::Iretq => Kind::InterruptReturn,
        M::Invlpg => Kind::FlushPage(flushed_register(instruction)),
        M::Mov if control(0) == Register::CR3 => Kind::PageTableSwitch,
        M::Mov if control(0) == Register::CR4 => Kind::FlushAll,
        M::Mov if control(1) == Register::CR2 => Kind::ReadsFaultAddress,
        M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => Kind::Port,
        M::Movnti
        | M::Movntdq
        | M::Movntps
        | M::Movntpd
        | M::Movntq
        | M::Vmovntdq
        | M::Vmovntps
        | M::Vmovntpd
        | M::Movntss
        | M::Movntsd => Kind::NonTemporalStore,
        M::Nop
            if instruction.code() == Code::Nop_rm32
                && instruction.memory_base() == Register::RAX
                && instruction.memory_index() == Register::None
                && instruction.memory_displacement32() & 0xffff_ff00
                    == hither_core::opium::MARKER_MAGIC =>
        {
            Kind::Marker(instruction.memory_displacement32())
        }
        _ => Kind::Plain,
    }
}

fn flushed_register(instruction: &Instruction) -> u32 {
    let plain = instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0
        && instruction.memory_base().is_gpr64()
        && !matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    if plain {
        instruction.memory_base().number() as u32
    } else {
        16
    }
}

/// Lanes times operations of an arithmetic instruction.
fn flops(instruction: &Instruction) -> u32 {
    let name = format!("{:?}", instruction.mnemonic()).to_ascii_lowercase();
    let (body, fused) = match name.strip_prefix('v') {
        Some(body) if body.starts_with("fm") || body.starts_with("fnm") => (body, 2),
        Some(body) => (body, 1),
        None => (name.as_str(), 1),
    };
    let arithmetic = fused == 2
        || ["add", "sub", "mul", "div", "sqrt"].iter().any(|stem| {
            body.strip_prefix(stem)
                .is_some_and(|suffix| matches!(suffix, "ss" | "sd" | "ps" | "pd"))
        });
    if arithmetic {
        let bytes = match instruction.op0_register().size() {
            0 => 16,
            size => size as u32,
        };
        let lanes = match &body[body.len() - 2..] {
            "ss" | "sd" => 1,
            "ps" => bytes / 4,
            _ => bytes / 8,
        };
        return lanes * fused;
    }
    let x87 = [
        "fadd", "faddp", "fsub", "fsubp", "fsubr", "fsubrp", "fmul", "fmulp", "fdiv", "fdivp",
        "fsqrt",
    ];
    u32::from(x87.contains(&name.as_str()) && instruction.memory_size() != MemorySize::UInt8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_instructions_are_recognised() {
        let cases: &[(&[u8], Kind)] = &[
            (&[0x90], Kind::Plain),
            (&[0x48, 0x01, 0xd8], Kind::Plain),
            (&[0x48, 0xf7, 0xf1], Kind::Divide),
            (&[0xf3, 0x90], Kind::Pause),
            (&[0x0f, 0x05], Kind::Syscall),
            (&[0x48, 0xcf], Kind::InterruptReturn),
            (&[0x0f, 0x01, 0x38], Kind::FlushPage(0)),
            (&[0x41, 0x0f, 0x01, 0x3c, 0x24], Kind::FlushPage(12)),
            (&[0x0f, 0x01, 0x7c, 0x24, 0x08], Kind::FlushPage(16)),
            (&[0x0f, 0x22, 0xd8], Kind::PageTableSwitch),
            (&[0x0f, 0x22, 0xe0], Kind::FlushAll),
            (&[0x0f, 0x20, 0xd0], Kind::ReadsFaultAddress),
            (&[0xed], Kind::Port),
            (&[0x66, 0x0f, 0xe7, 0x07], Kind::NonTemporalStore),
            (&[0xf3, 0xa4], Kind::RepeatString),
            (&[0xf3, 0x48, 0xab], Kind::RepeatString),
            (&[0xf2, 0x0f, 0x10, 0x07], Kind::Plain), // movsd xmm0, [rdi]
            (
                &[0x0f, 0x1f, 0x80, 0x01, 0x49, 0x50, 0x4f],
                Kind::Marker(0x4f50_4901),
            ),
            (&[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00], Kind::Plain),
            (&[], Kind::Plain),
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode(bytes).kind, *expected, "{bytes:x?}");
        }
    }

    #[test]
    fn floating_point_operations_are_counted_by_lane() {
        let cases: &[(&[u8], u32)] = &[
            (&[0xf2, 0x0f, 0x58, 0xc1], 1),       // addsd
            (&[0x0f, 0x59, 0xc1], 4),             // mulps xmm
            (&[0x66, 0x0f, 0x58, 0xc1], 2),       // addpd xmm
            (&[0xc5, 0xfd, 0x58, 0xc1], 4),       // vaddpd ymm
            (&[0xc4, 0xe2, 0xf5, 0xb8, 0xc2], 8), // vfmadd231pd ymm
            (&[0xd8, 0xc1], 1),                   // fadd st0, st1
            (&[0x48, 0x01, 0xd8], 0),             // add rax, rbx
            (&[0x66, 0x0f, 0xfe, 0xc1], 0),       // paddd
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode(bytes).flops, *expected, "{bytes:x?}");
        }
    }
}
