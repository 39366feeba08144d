//! Images per second of the recipes, here and with PyTorch.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{Check, Found, Part, Precision};
use crate::error::BenchError;
use crate::training::trained::{self, Taken};
use crate::{report, stats};

/// A recipe to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipe {
    /// The WideResNet of the Olivia guide.
    Olivia,
    /// WRN-28-10.
    #[value(name = "wrn-28-10")]
    Wrn28x10,
    /// WRN-16-4, for devices that are slow.
    #[value(name = "wrn-16-4")]
    Wrn16x4,
    /// ViT-Tiny on 32×32 pixels in patches of 4.
    VitTiny,
    /// ViT-B/16 on 224×224 pixels.
    #[value(name = "vit-b-16")]
    VitB16,
    /// ResNet-50 on 224×224 pixels.
    #[value(name = "resnet-50")]
    ResNet50,
}

/// Maximum bytes of a cell's images on the device: 28,532 images of 224×224 pixels.
const MOST_BYTES: usize = 1 << 32;

impl Recipe {
    /// Recipes measured by default.
    pub const ALL: [Self; 5] = [
        Self::Olivia,
        Self::Wrn28x10,
        Self::VitTiny,
        Self::VitB16,
        Self::ResNet50,
    ];

    /// Bytes of an image.
    fn image_bytes(self) -> usize {
        let side = match self {
            Self::VitB16 | Self::ResNet50 => 224,
            Self::Olivia | Self::Wrn28x10 | Self::Wrn16x4 | Self::VitTiny => 32,
        };
        3 * side * side
    }

    /// Number of images on the device, the same for us and PyTorch.
    ///
    /// They last for `steps` of `batch`, so that no epoch ends meanwhile: PyTorch's script has no
    /// epochs, and at an epoch's end we would shuffle, evaluate, and leave the device idle. 60
    /// steps of 256 take 45 MiB, or 2,205 MiB for ViT-B/16. Memory is compared without the images.
    fn images(self, batch: usize, steps: usize) -> usize {
        batch
            .saturating_mul(steps)
            .min(MOST_BYTES / self.image_bytes())
    }

    /// Memory of the images in MiB.
    fn images_mib(self, images: usize) -> f64 {
        (images * self.image_bytes()) as f64 / f64::from(1 << 20)
    }
}

/// Our memory as a ratio of PyTorch's, without the images that both keep.
fn memory_ratio(ours: f64, torch: f64, images: f64) -> Option<f64> {
    let (ours, torch) = (ours - images, torch - images);
    (ours > 0.0 && torch > 0.0).then(|| ours / torch)
}

impl Check<'_> {
    /// Every recipe in every number format. Low precision comes first, because it matters most.
    fn cells(&self) -> Vec<(Recipe, Precision)> {
        let order = [Precision::Bf16, Precision::F16, Precision::F32];
        let wanted = |precision: &Precision| self.args.precisions.contains(precision);
        self.args
            .recipes
            .iter()
            .flat_map(|recipe| order.into_iter().filter(wanted).map(|p| (*recipe, p)))
            .collect()
    }

    /// Measures each cell, followed at once by PyTorch's if requested. A check cut short then has
    /// ratios from adjacent measurements.
    pub(super) fn speed(&mut self) -> Result<(), BenchError> {
        let wanted = self.args.parts.contains(&Part::Torch);
        let python = wanted.then(|| self.python()).and_then(Result::ok);
        for (recipe, precision) in self.cells() {
            let found = self.train(recipe, precision);
            self.tell(Part::Speed, format!("{recipe} {precision}"), found)?;
            if let Some(python) = &python {
                self.compare_torch(python, (recipe, precision))?;
            }
        }
        Ok(())
    }

    /// Measures a cell with PyTorch, in eager mode and, if requested, compiled.
    fn compare_torch(
        &mut self,
        python: &Path,
        cell: (Recipe, Precision),
    ) -> Result<(), BenchError> {
        let (recipe, precision) = cell;
        let found = self.train_torch(python, cell, false);
        self.tell(Part::Torch, format!("{recipe} {precision}"), found)?;
        if self.args.torch_compile {
            let found = self.train_torch(python, cell, true);
            self.tell(Part::Torch, format!("{recipe} {precision} compiled"), found)?;
        }
        Ok(())
    }

    fn images(&self, recipe: Recipe) -> usize {
        let steps = usize::from(self.args.steps) + usize::from(self.args.warm_up);
        recipe.images(usize::from(self.args.batch), steps)
    }

    /// A training on one rank with its images on the device.
    fn training(
        &self,
        recipe: Recipe,
        precision: Precision,
        steps: usize,
        images: usize,
    ) -> Command {
        let mut command = self.child.command(&[trained::COMMAND, "--ranks", "1"]);
        command
            .args(["--model", &recipe.to_string()])
            .args(["--batch", &self.args.batch.to_string()])
            .args(["--steps", &steps.to_string()])
            .args(["--images", &images.to_string()])
            .args(["--set", &format!("train.device={}", self.args.device)])
            .args(["--set", &format!("train.precision={precision}")])
            .args(["--set", "data.on_device=true"]);
        command
    }

    fn train(&self, recipe: Recipe, precision: Precision) -> Result<Found, String> {
        let folder = self.child.folder();
        let out = folder.join("seconds.json");
        let (steps, warm_up) = (usize::from(self.args.steps), usize::from(self.args.warm_up));
        let batch = usize::from(self.args.batch);
        let images = self.images(recipe);
        let mut command = self.training(recipe, precision, steps + warm_up, images);
        command.arg("--memory").arg(folder).arg("--out").arg(&out);
        self.child
            .finish(&format!("speed {recipe} {precision}"), command)?;
        let [mut seconds]: [Vec<f64>; 1] = report::read(&out).map_err(|error| error.to_string())?;
        let counted = seconds.split_off(warm_up.min(seconds.len()));
        let median = stats::median(&counted).ok_or("no step was counted")?;
        let total: f64 = counted.iter().sum();
        let taken: Taken =
            report::read(&Taken::file(folder, 0)).map_err(|error| error.to_string())?;
        let rate = (counted.len() * batch) as f64 / total;
        let memory = taken
            .device_mib
            .map_or_else(String::new, |mib| format!(", {mib:.0} MiB on the device"));
        Ok(Found {
            good: Some(true),
            words: format!("{rate:.0} images/s{memory}"),
            values: json!({
                "images_per_second": rate,
                "median_images_per_second": batch as f64 / median,
                "memory_mib": taken.device_mib,
                "images": images,
                "images_mib": recipe.images_mib(images),
                "seconds": counted,
            }),
        })
    }

    /// Measures the time from program start to the end of the first step, for every cell.
    pub(super) fn start(&mut self) -> Result<(), BenchError> {
        for (recipe, precision) in self.cells() {
            let found = self.first_step(recipe, precision);
            self.tell(Part::Start, format!("{recipe} {precision}"), found)?;
        }
        Ok(())
    }

    /// A training of one step, so that nothing else is compiled before its loss is read.
    fn first_step(&self, recipe: Recipe, precision: Precision) -> Result<Found, String> {
        let folder = self.child.folder();
        let (out, ended) = (folder.join("seconds.json"), folder.join("first-step.json"));
        // File of an earlier cell.
        let _ = std::fs::remove_file(&ended);
        let batch = usize::from(self.args.batch);
        let mut command = self.training(recipe, precision, 1, recipe.images(batch, 1));
        command
            .arg("--first-step")
            .arg(&ended)
            .arg("--out")
            .arg(&out);
        let begin = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let begin = begin.map_err(|error| error.to_string())?.as_secs_f64();
        self.child
            .finish(&format!("start {recipe} {precision}"), command)?;
        let ended: f64 = report::read(&ended).map_err(|error| error.to_string())?;
        let seconds = ended - begin;
        Ok(Found {
            good: Some(true),
            words: format!("{seconds:.2} s from the start to the end of the first step"),
            values: json!({ "seconds": seconds }),
        })
    }

    /// Measures the cells with PyTorch, and our ratio to it, unless measured already.
    pub(super) fn torch(&mut self) -> Result<(), BenchError> {
        if self.rows.iter().any(|row| row.part == Part::Torch) {
            return Ok(());
        }
        let python = match self.python() {
            Ok(python) => python,
            Err(reason) => {
                let found = Found {
                    good: None,
                    words: format!("not compared: {reason}"),
                    values: Value::Null,
                };
                return self.tell(Part::Torch, "PyTorch", Ok(found));
            }
        };
        for cell in self.cells() {
            self.compare_torch(&python, cell)?;
        }
        Ok(())
    }

    /// A Python whose PyTorch has the device.
    fn python(&self) -> Result<PathBuf, String> {
        let python = self.args.python.clone();
        let python = python.unwrap_or_else(|| PathBuf::from("python3"));
        let device = self.torch_device()?;
        let test = format!(
            "import torch, sys; sys.exit(0 if \"{device}\" == \"cpu\" or torch.cuda.is_available() \
             else \"torch has no CUDA device\")"
        );
        let mut command = Command::new(&python);
        command.args(["-c", &test]);
        self.child.finish("torch", command)?;
        if !self.args.torch_script.exists() {
            return Err(format!("no {}", self.args.torch_script.display()));
        }
        Ok(python)
    }

    fn torch_device(&self) -> Result<&'static str, String> {
        use burn_dist::device::DeviceChoice::{Auto, Cpu, Cuda, Wgpu};
        match self.args.device {
            Cuda | Auto => Ok("cuda"),
            Cpu => Ok("cpu"),
            Wgpu => Err("PyTorch has no wgpu".to_owned()),
        }
    }

    fn train_torch(
        &self,
        python: &Path,
        (recipe, precision): (Recipe, Precision),
        compiled: bool,
    ) -> Result<Found, String> {
        let mut command = Command::new(python);
        command
            .arg(&self.args.torch_script)
            .args(["--device", self.torch_device()?])
            .args(["--recipe", &recipe.to_string()])
            .args(["--precision", &precision.to_string()])
            .args(["--batch", &self.args.batch.to_string()])
            .args(["--steps", &self.args.steps.to_string()])
            .args(["--warm-up", &self.args.warm_up.to_string()])
            .args(["--images", &self.images(recipe).to_string()])
            // cubecl computes f32 products on tensor cores, too.
            .arg("--tf32")
            .args(compiled.then_some("--compile"));
        let name = match compiled {
            true => format!("torch {recipe} {precision} compiled"),
            false => format!("torch {recipe} {precision}"),
        };
        let text = self.child.finish(&name, command)?;
        let line = text.lines().rfind(|line| line.starts_with('{'));
        let values: Value = serde_json::from_str(line.unwrap_or_default())
            .map_err(|error| format!("{error} in {text:?}"))?;
        let rate = values["images_per_second"].as_f64();
        let rate = rate.ok_or("no images_per_second")?;
        let what = format!("{recipe} {precision}");
        let ours = self
            .rows
            .iter()
            .find(|row| row.part == Part::Speed && row.what == what);
        let both = |key: &str| {
            let ours = ours.and_then(|row| row.values[key].as_f64())?;
            Some((ours, values[key].as_f64()?))
        };
        let of = |key: &str| both(key).map(|(ours, torch)| ours / torch);
        let share = |ratio: Option<f64>| ratio.map_or("?".to_owned(), |r| format!("{r:.2}"));
        let (speed, median) = (of("images_per_second"), of("median_images_per_second"));
        let images = recipe.images_mib(self.images(recipe));
        let memory = both("memory_mib").and_then(|(ours, torch)| memory_ratio(ours, torch, images));
        Ok(Found {
            good: Some(true),
            words: format!(
                "{rate:.0} images/s; ours / PyTorch's: speed {} (of medians {}), memory beside the \
                 images {}",
                share(speed),
                share(median),
                share(memory)
            ),
            values: json!({
                "torch": values,
                "speed_ratio": speed,
                "median_ratio": median,
                "memory_ratio": memory,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_epoch_ends_within_the_usual_steps() {
        for recipe in Recipe::value_variants() {
            assert_eq!(recipe.images(256, 60), 256 * 60, "{recipe}");
        }
        assert_eq!(Recipe::Olivia.images_mib(256 * 60), 45.0);
        assert_eq!(Recipe::VitB16.images_mib(256 * 60), 2205.0);
    }

    #[test]
    fn images_have_a_limit_that_holds_a_batch() {
        let (batch, steps) = (4096, 2 * usize::from(u16::MAX));
        for recipe in Recipe::value_variants() {
            let images = recipe.images(batch, steps);
            assert!(
                (batch..batch * steps).contains(&images),
                "{recipe}: {images}"
            );
            assert!(images * recipe.image_bytes() <= MOST_BYTES, "{recipe}");
        }
    }

    #[test]
    fn memory_is_compared_without_the_images() {
        assert_eq!(memory_ratio(30.0, 40.0, 20.0), Some(0.5));
        assert_eq!(
            memory_ratio(30.0, 20.0, 20.0),
            None,
            "nothing to compare with"
        );
    }
}
