//! The kernel inside a compressed image, which starts sooner than the image.
//!
//! QEMU enters an ELF kernel where the note of the PVH protocol says (Xen's "x86/HVM direct boot ABI";
//! Linux `arch/x86/platform/pvh`). An image begins in real mode and unpacks itself first: all of it
//! emulated, a fifth to a quarter of the time until the guest's first process.

use object::LittleEndian;
use object::elf::{FileHeader64, NoteType};
use object::read::elf::{FileHeader, ProgramHeader};
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// `XEN_ELFNOTE_PHYS32_ENTRY` of Xen's `public/elfnote.h`: the entry in 32-bit mode.
const PVH_ENTRY: NoteType = NoteType(18);
/// No kernel is larger: what claims to be is refused before it is unpacked.
const MOST_BYTES: u32 = 1 << 30;

/// The ELF kernel in an image (Linux `Documentation/arch/x86/boot.rst`, "The Real-Mode Kernel Header")
/// that is compressed with Zstandard, as Debian's are. `None` where it is compressed otherwise, is
/// older than protocol 2.08, has no PVH entry or is damaged: the image itself can be started then.
#[must_use]
pub fn unpack(image: &[u8]) -> Option<Vec<u8>> {
    let field = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let size = |at: usize| usize::try_from(field(at)?).ok();
    if !crate::cache::is_kernel_image(image) || field(0x206)? & 0xffff < 0x208 {
        return None;
    }
    // Zero sectors of set-up code mean four.
    let sectors = match image.get(0x1f1)? {
        0 => 4,
        &sectors => usize::from(sectors),
    };
    let start = ((sectors + 1) * 512).checked_add(size(0x248)?)?;
    let payload = image.get(start..start.checked_add(size(0x24c)?)?)?;
    // The kernel's build appends the length to what the compressor wrote.
    let (frame, length) = payload.split_last_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    if length > MOST_BYTES {
        return None;
    }
    let decoder = StreamingDecoder::new(frame).ok()?;
    let mut kernel = Vec::new();
    let mut limited = decoder.take(u64::from(length) + 1);
    limited.read_to_end(&mut kernel).ok()?;
    (kernel.len() == length as usize && has_pvh_entry(&kernel)).then_some(kernel)
}

fn has_pvh_entry(kernel: &[u8]) -> bool {
    let entry = || -> object::read::Result<bool> {
        let header = FileHeader64::<LittleEndian>::parse(kernel)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, kernel)? {
            let Some(mut notes) = segment.notes(endian, kernel)? else {
                continue;
            };
            while let Some(note) = notes.next()? {
                if note.name() == b"Xen" && note.n_type(endian) == PVH_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    entry().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    /// An ELF file whose only segment is a note of this type.
    fn kernel(note_type: u32) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        let fields: [&[(u64, usize)]; 4] = [
            // Executable, x86-64, version; entry, program headers, sections; flags and sizes.
            &[
                (2, 2),
                (62, 2),
                (1, 4),
                (0, 8),
                (64, 8),
                (0, 8),
                (0, 4),
                (64, 2),
                (56, 2),
                (1, 2),
            ],
            &[(0, 2); 3],
            // A note of 20 bytes behind: type, flags, offset, addresses, sizes, alignment.
            &[
                (4, 4),
                (4, 4),
                (120, 8),
                (0, 8),
                (0, 8),
                (20, 8),
                (20, 8),
                (4, 8),
            ],
            &[(4, 4), (4, 4), (note_type.into(), 4)],
        ];
        for &(value, bytes) in fields.into_iter().flatten() {
            elf.extend(&value.to_le_bytes()[..bytes]);
        }
        elf.extend(b"Xen\0\x60\x01\x8c\x03");
        elf
    }

    fn image(protocol: u16, kernel: &[u8]) -> Vec<u8> {
        let frame = compress_to_vec(kernel, CompressionLevel::Fastest);
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&protocol.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(frame.len() as u32 + 4).to_le_bytes());
        image.extend([0x90; 16]);
        image.extend(frame);
        image.extend((kernel.len() as u32).to_le_bytes());
        image.extend([0x90; 8]);
        image
    }

    #[test]
    fn a_kernel_with_a_pvh_entry_is_taken_out_of_its_image() {
        let kernel = kernel(18);
        assert_eq!(unpack(&image(0x20f, &kernel)), Some(kernel));
    }

    #[test]
    fn an_image_that_cannot_be_unpacked_is_left_as_it_is() {
        let whole = image(0x20f, &kernel(18));
        assert_eq!(unpack(&image(0x207, &kernel(18))), None, "too old");
        assert_eq!(unpack(&image(0x20f, &kernel(17))), None, "no PVH entry");
        assert_eq!(unpack(&image(0x20f, b"no ELF file")), None);
        // The last eight bytes are behind the payload.
        for length in 0..whole.len() - 8 {
            assert_eq!(unpack(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            // What does not matter, or is seen: no panic, and nothing but a kernel.
            if let Some(kernel) = unpack(&damaged) {
                assert!(has_pvh_entry(&kernel), "byte {at}");
            }
        }
    }
}
