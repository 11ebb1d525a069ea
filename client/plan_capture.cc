#include "client/plan_capture.h"

namespace tessera {
namespace {

thread_local PlanCapture* current = nullptr;

}  // namespace

PlanCapture::PlanCapture() : outer_(current) { current = this; }
PlanCapture::~PlanCapture() { current = outer_; }
PlanCapture* PlanCapture::Current() { return current; }

std::shared_ptr<const HeldMemory> PlanCapture::Hold(HeldMemory memory) {
  std::erase_if(held_, [](const std::weak_ptr<const HeldMemory>& held) { return held.expired(); });
  auto held = std::make_shared<const HeldMemory>(std::move(memory));
  held_.push_back(held);
  return held;
}

std::vector<HeldMemory> PlanCapture::Held() const {
  std::vector<HeldMemory> all;
  if (outer_ != nullptr) all = outer_->Held();
  for (const std::weak_ptr<const HeldMemory>& weak : held_) {
    if (const std::shared_ptr<const HeldMemory> held = weak.lock(); held != nullptr) all.push_back(*held);
  }
  return all;
}

}  // namespace tessera
