import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { millrace } from '@millrace/client';
import { MillraceProvider } from '@millrace/client/react';
import { server, type App as Channels } from '../channels.js';
import { App } from './App.js';

const client = millrace<Channels>(server());

createRoot(document.getElementById('app')!).render(
  <StrictMode>
    <MillraceProvider client={client}>
      <App />
    </MillraceProvider>
  </StrictMode>,
);
