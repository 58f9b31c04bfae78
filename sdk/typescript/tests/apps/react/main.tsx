import { StrictMode } from 'react';
import { createRoot, hydrateRoot } from 'react-dom/client';
import { millrace } from '@millrace/client';
import { MillraceProvider } from '@millrace/client/react';
import { server, type App as Channels } from '../channels.js';
import { App } from './App.js';

const client = millrace<Channels>(server());
const page = (
  <StrictMode>
    <MillraceProvider client={client}>
      <App />
    </MillraceProvider>
  </StrictMode>
);
const target = document.getElementById('app')!;

// The page of server.tsx is hydrated.
if (target.hasChildNodes()) hydrateRoot(target, page);
else createRoot(target).render(page);
