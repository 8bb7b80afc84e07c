-- Health of an IdempotentJob for Argo CD, which ignores the conditions Ready, Reconciling and Stalled of kinds that it does not know.
-- docs/helm.md says how to install it; a test runs it in Argo CD's own interpreter over every status of real jobs.
local status = obj.status or {}
if status.phase == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen this version of the object yet" }
end
local healthOf = {
  Succeeded = "Healthy", Failed = "Degraded", Cancelled = "Degraded", Held = "Degraded", Mismatch = "Degraded", Expired = "Degraded",
}
local health = healthOf[status.phase] or "Progressing"  -- status of an earlier operator, which wrote no conditions
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" then
    if condition.type == "Ready" then
      health = "Healthy"
    elseif condition.type == "Stalled" then
      health = "Degraded"
    elseif condition.type == "Reconciling" then
      health = condition.reason == "Suspended" and "Suspended" or "Progressing"
    end
  end
end
return { status = health, message = status.message or status.phase }
